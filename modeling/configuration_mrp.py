"""`MRPConfig`: what a frozen diffusion backbone and its residual head need to know about each other."""

from typing import Any, TypeGuard

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .architectures_mrp import architecture_of

# Recorded in every checkpoint. Raise it whenever the files that travel with a checkpoint change what they compute or
# accept, so that loading an older checkpoint with newer code (or the reverse) says so.
CODE_VERSION = "2"

ATTENTION_PATTERNS = ("block_causal", "bidirectional")
PREDICTIONS = ("residual", "direct")


class MRPConfig(PreTrainedConfig):
    """Configuration of `MRPForDiffusionLM`.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`):
            Config of the backbone's native architecture, a `Qwen3Config` for example.
        mask_token_id (`int`):
            Id of the mask token, inside the backbone's vocabulary.
        block_length (`int`, *optional*):
            Number of tokens that are denoised together. A block-causal backbone was trained with one; a bidirectional
            one knows none, and `None` makes all new tokens one block.
        backbone_name_or_path (`str`, *optional*):
            Where the backbone came from.
        num_mrp_layers (`int`, *optional*, defaults to 3):
            Decoder layers of the head. 0 makes a model without a head.
        attention_pattern (`str`, *optional*, defaults to `"block_causal"`):
            `"block_causal"`: a token sees earlier blocks and its whole own block; `"bidirectional"`: everything.
        logit_shift (`bool`, *optional*, defaults to `False`):
            Whether token i is predicted by the hidden state at i - 1.
        logit_scale (`float`, *optional*, defaults to 1.0):
            Factor between the LM head's output and the logits.
        mrp_prediction (`str`, *optional*, defaults to `"residual"`):
            `"residual"`: the head predicts what is added to the backbone's logits; `"direct"`: the next logits.
        mrp_head_trained (`bool`, *optional*, defaults to `False`):
            Set by training. Speculative decoding drafts with a trained head only, unless the head is asked for by name.
        mrp_initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of a fresh head's linear layers. The published heads were trained from 0.2.
        mrp_head_only (`bool`, *optional*, defaults to `False`):
            Whether the checkpoint holds the head alone; its backbone is at `backbone_name_or_path`.
        backbone_fingerprint (`str`, *optional*):
            In a head-only checkpoint, tells the backbone that the head was trained on from others.
        mrp_code_version (`str`, *optional*):
            Version of the code that wrote the checkpoint; set by `save_pretrained`.

    Raises:
        ValueError: for a value that cannot work, naming the argument, the value and the remedy.
    """

    model_type = "mrp"
    # The default type is never used: a missing backbone config is an error below.
    sub_configs_defaults = {"backbone_config": SubConfigSpec(AutoConfig, model_type="qwen3", optional=True)}  # noqa: RUF012

    backbone_config: Any = None  # a native config: which fields it has is its architecture's matter
    backbone_name_or_path: str | None = None
    num_mrp_layers: int = 3
    mask_token_id: int | None = None
    block_length: int | None = None
    attention_pattern: str = "block_causal"
    logit_shift: bool = False
    logit_scale: float = 1.0
    mrp_prediction: str = "residual"
    mrp_head_trained: bool = False
    mrp_initializer_range: float = 0.02
    mrp_head_only: bool = False
    backbone_fingerprint: str | None = None
    mrp_code_version: str = CODE_VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        if self.backbone_config is None:
            raise ValueError(
                "`backbone_config` is missing: pass the backbone's config, or build the model with "
                "`MRPForDiffusionLM.from_backbone(name_or_path)` if this is the folder of a plain backbone."
            )
        if isinstance(self.backbone_config, dict):
            model_type = self.backbone_config.get("model_type")
            if model_type not in CONFIG_MAPPING and self.mrp_head_only:
                # A backbone with code of its own, whose config class comes with it when it is fetched.
                fields = {name: value for name, value in self.backbone_config.items() if name != "model_type"}
                self.backbone_config = PreTrainedConfig(**fields)
                self.backbone_config.model_type = model_type
            elif model_type not in CONFIG_MAPPING:
                raise ValueError(
                    f"`backbone_config` has model_type={model_type!r}, which is not an architecture of transformers; "
                    "use the native architecture's (a table of them is in `backbones_mrp.py`)."
                )
        else:
            # The base class passes its own choice, `None` unless given, down to the backbone's config.
            for name in ("attn_implementation", "experts_implementation"):
                kwargs.setdefault(name, getattr(self.backbone_config, f"_{name}"))
        super().__post_init__(**kwargs)
        self.check_values()

    def check_values(self) -> None:
        """Raise a `ValueError` for the first field whose value cannot work."""
        if not is_int(self.num_mrp_layers) or self.num_mrp_layers < 0:
            raise ValueError(f"`num_mrp_layers` must be 0 (no head) or more, got {self.num_mrp_layers!r}.")
        if not is_int(self.mask_token_id) or not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"`mask_token_id` must be inside the backbone's vocabulary (0 to {self.vocab_size - 1}), got "
                f"{self.mask_token_id!r}: pass the id of the mask token that the backbone was trained with."
            )
        if self.attention_pattern not in ATTENTION_PATTERNS:
            raise ValueError(
                f"`attention_pattern` must be one of {ATTENTION_PATTERNS}, got {self.attention_pattern!r}."
            )
        open_block = self.block_length is None and self.attention_pattern == "bidirectional"
        if not open_block and (not is_int(self.block_length) or self.block_length < 1):
            raise ValueError(
                f"`block_length` must be at least 1, got {self.block_length!r}: "
                "pass the number of tokens that the backbone was trained to denoise together."
            )
        if self.mrp_prediction not in PREDICTIONS:
            raise ValueError(f"`mrp_prediction` must be one of {PREDICTIONS}, got {self.mrp_prediction!r}.")
        for name in ("logit_shift", "mrp_head_trained", "mrp_head_only"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}.")
        for name in ("mrp_initializer_range", "logit_scale"):
            if not isinstance(getattr(self, name), int | float) or not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above 0, got {getattr(self, name)!r}.")

    def to_dict(self) -> dict[str, Any]:
        fields = super().to_dict()
        # Where the backbone was read from stands in `backbone_name_or_path` alone.
        fields["backbone_config"].pop("_name_or_path", None)
        return fields

    # What trainers, caches and resizing ask of any language model's config is the backbone's.

    @property
    def vocab_size(self) -> int:
        return self.backbone_config.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.backbone_config.hidden_size

    @property
    def num_backbone_layers(self) -> int:
        return self.backbone_config.num_hidden_layers

    @property
    def max_position_embeddings(self) -> int:
        return self.backbone_config.max_position_embeddings

    @property
    def has_token_types(self) -> bool:
        """Whether the backbone embeds token types (BERT)."""
        return getattr(self.backbone_config, "type_vocab_size", 0) > 1

    @property
    def backbone_caches(self) -> bool:
        """Whether the backbone takes a cache."""
        return architecture_of(self.backbone_config).caches


def is_int(value: object) -> TypeGuard[int]:
    """Whether `value` is an integer; `True` and `False` are not."""
    return isinstance(value, int) and not isinstance(value, bool)
