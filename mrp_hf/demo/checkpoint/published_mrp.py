"""The published layout of MRP checkpoints, `SDARMRPForCausalLM`, read as an `MRPConfig` and a renaming of tensors.

Source: heavyball-research/multi-token-residual-prediction, src/models/SDAR-1.7B-MRP. Three variants are released, which
share config fields and tensor names:

- `sdar-*-mrp-3lyr`, trained with one lookahead step;
- `…-k2`, trained with two: nothing to be done about it in loading;
- `…-direct`, whose head predicts the next logits themselves. Only the name says so, so the name is asked, unless
  `mrp_prediction` is given. The exporter of this package writes it into the config.

`num_mrp_heads` counts modules `mrp_modules.N`. The published code trains and runs `mrp_modules.0` alone, whatever the
number is, so this is the head that is loaded.
"""

import logging
import os
from typing import Any

from transformers import CONFIG_MAPPING

from .backbones_mrp import tokenizer_mask_id
from .configuration_mrp import is_int
from .families_mrp import FAMILIES, UPSTREAM_ONLY

logger = logging.getLogger(__name__)

ARCHITECTURE = "SDARMRPForCausalLM"
MODEL_TYPE = "sdar"
# Published tensor names to ours, as `key_mapping` of `from_pretrained`; the exporter turns it round.
KEY_MAPPING = {
    r"^model\.": "backbone.model.",
    r"^lm_head\.": "backbone.lm_head.",
    r"^mrp_modules\.0\.model\.": "mrp_head.",
}
# Config fields that only our exporter writes, where their values are not what is assumed without them.
OUR_FIELDS = ("mrp_prediction", "mrp_head_trained", "mrp_initializer_range")
DIRECT_SUFFIX = "-direct"


def is_published(fields: dict[str, Any]) -> bool:
    """Whether config fields are those of the published layout."""
    architectures = fields.get("architectures") or ()
    return fields.get("model_type") == MODEL_TYPE and (
        ARCHITECTURE in architectures or "num_nextn_predict_layers" in fields
    )


def fields_of_published(
    fields: dict[str, Any], name: str, *, mask_token_id: int | None = None, block_length: int | None = None
) -> dict[str, Any]:
    """Fields of `MRPConfig` for the config fields of a published checkpoint.

    Args:
        fields: content of its config.json.
        name: its folder or Hub name. It serves as the backbone's name too: the weights are there.
        mask_token_id, block_length: used instead of what the config says.

    Raises:
        ValueError: for a number of heads or layers that cannot be, or if mask id or block length stay open.
    """
    where = f"the config of published checkpoint {name!r}"
    heads, layers = fields.get("num_mrp_heads", 1), fields.get("num_nextn_predict_layers", 1)
    if not is_int(heads) or heads < 0:
        raise ValueError(f"{where} has num_mrp_heads={heads!r}: it must be 0 or more.")
    if not is_int(layers) or layers < 1:
        raise ValueError(f"{where} has num_nextn_predict_layers={layers!r}: it must be at least 1.")
    if heads > 1:
        logger.warning(
            "Published checkpoint %r has num_mrp_heads=%d: `mrp_modules.0` is loaded, the only one that the published "
            "code runs; the others are left out.",
            name,
            heads,
        )
    family = FAMILIES[MODEL_TYPE]
    mask_token_id = fields.get("mask_token_id") if mask_token_id is None else mask_token_id
    if mask_token_id is None:
        mask_token_id = tokenizer_mask_id(name, family.mask_tokens)
    block_length = fields.get("block_size") if block_length is None else block_length
    for argument, value in (("mask_token_id", mask_token_id), ("block_length", block_length)):
        if value is None:
            raise ValueError(f"{where} gives no {argument}: pass `{argument}=...`.")
    native = {key: value for key, value in fields.items() if key not in (*UPSTREAM_ONLY, "model_type")}
    is_direct = os.path.basename(os.path.normpath(name)).endswith(DIRECT_SUFFIX)
    return {
        "backbone_config": CONFIG_MAPPING[family.native_type](**native),
        "backbone_name_or_path": name,
        "num_mrp_layers": layers if heads else 0,
        "mask_token_id": mask_token_id,
        "block_length": block_length,
        "attention_pattern": family.attention_pattern,
        "logit_shift": family.logit_shift,
        "mrp_prediction": "direct" if is_direct else "residual",
        "mrp_head_trained": heads > 0,
        **{key: fields[key] for key in OUR_FIELDS if key in fields},
    }
