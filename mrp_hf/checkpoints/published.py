"""Writing the published layout, `SDARMRPForCausalLM`, for serving engines and code that read it.

The counterpart of `modeling/published_mrp.py`, which says where the layout comes from. What is written are config and
tensors: the published Python files, which the config's `auto_map` names, are not part of this package.
"""

import json
import os
from typing import Any

from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import PreTrainedConfig

from mrp_hf.modeling.checkpoint_mrp import staged
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.modeling.published_mrp import ARCHITECTURE, KEY_MAPPING, MODEL_TYPE, OUR_FIELDS

NATIVE_TYPE = "qwen3"
AUTO_MAP = {
    "AutoConfig": "configuration_sdar_mrp.SDARMRPConfig",
    "AutoModel": f"modeling_sdar_mrp.{ARCHITECTURE}",
    "AutoModelForCausalLM": f"modeling_sdar_mrp.{ARCHITECTURE}",
}
# Fields of a native config that the published code does not know, or knows in another form.
NATIVE_ONLY = ("_name_or_path", "dtype", "layer_types", "model_type", "rope_parameters")
# What a published config says where `OUR_FIELDS` are left out.
ASSUMED = {"mrp_prediction": "residual", "mrp_head_trained": True, "mrp_initializer_range": 0.02}


def export_published(
    model: MRPForDiffusionLM, folder: str | os.PathLike[str], *, max_shard_size: int | str = "50GB"
) -> None:
    """Write a model in the published layout: config.json, generation_config.json and safetensors.

    The published reader takes one head whose layers are like the backbone's. A `"direct"` head has the same tensors as
    a residual one; the config says which it is in a field of our own, `mrp_prediction`.

    Args:
        model: a model with a head on an SDAR backbone (natively Qwen3).
        folder: files of these names in it are replaced, each when all are complete.
        max_shard_size: largest size of a weights file.

    Raises:
        ValueError: if the layout cannot hold the model; nothing is written.
    """
    config = published_config(model)
    tensors = published_tensors(model)
    with staged(folder) as stage:
        save_torch_state_dict(tensors, stage, max_shard_size=max_shard_size)
        model.generation_config.save_pretrained(stage)
        (stage / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def published_config(model: MRPForDiffusionLM) -> dict[str, Any]:
    """The published config.json of a model.

    Raises:
        ValueError: if the layout cannot hold the model.
    """
    check_exportable(model)
    config: Any = model.config
    fields = model.backbone.config.to_dict()
    rope = dict(fields["rope_parameters"])
    theta = rope.pop("rope_theta")
    unsaid = PreTrainedConfig().to_dict()
    native = {
        name: value
        for name, value in fields.items()
        if name not in (*NATIVE_ONLY, *OUR_FIELDS) and not (name in unsaid and value == unsaid[name])
    }
    ours = {name: getattr(config, name) for name in OUR_FIELDS if getattr(config, name) != ASSUMED[name]}
    return {
        "fuse_cross_entropy": True,  # read by the published code, without a default
        **native,
        "architectures": [ARCHITECTURE],
        "auto_map": AUTO_MAP,
        "block_size": config.block_length,
        "mask_token_id": config.mask_token_id,
        "model_type": MODEL_TYPE,
        "num_mrp_heads": 1,
        "num_nextn_predict_layers": config.num_mrp_layers,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        "rope_theta": theta,
        "torch_dtype": str(model.dtype).removeprefix("torch."),
        **ours,
    }


def check_exportable(model: MRPForDiffusionLM) -> None:
    """Raise a `ValueError` if the published layout cannot hold a model."""
    config: Any = model.config
    if config.num_mrp_layers == 0:
        raise ValueError(
            "a model without a head (num_mrp_layers=0) has no published layout: save its backbone with "
            "`model.backbone.save_pretrained(folder)`."
        )
    native_type = config.backbone_config.model_type
    if native_type != NATIVE_TYPE:
        raise ValueError(
            f"the published layout is SDAR's, whose backbone is natively {NATIVE_TYPE!r}; this one is {native_type!r}: "
            "save the model with `save_pretrained` instead."
        )
    for name, only in (("attention_pattern", "block_causal"), ("logit_shift", False), ("logit_scale", 1.0)):
        if getattr(config, name) != only:
            raise ValueError(
                f"the published layout is for {name}={only!r}, this model has {getattr(config, name)!r}: save it with "
                "`save_pretrained` instead."
            )


def published_tensors(model: MRPForDiffusionLM) -> dict[str, Tensor]:
    """A model's tensors under the published names; a tied LM head is left out, as the embeddings hold it."""
    prefixes = {ours: theirs.replace("\\", "").removeprefix("^") for theirs, ours in KEY_MAPPING.items()}
    tied = model.backbone.config.tie_word_embeddings
    tensors = {}
    for name, tensor in model.state_dict().items():
        if tied and name == "backbone.lm_head.weight":
            continue
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        tensors[prefixes[prefix] + name.removeprefix(prefix)] = tensor.contiguous()
    return tensors
