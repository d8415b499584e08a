"""Loading models for the commands, and quiet while it happens."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

DEMO = "demo"


def load_checkpoint(name_or_path: str) -> "tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]":
    """An MRP checkpoint of any format and its tokenizer; the name `demo` means the shipped one."""
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from mrp_hf.demo.shipped import shipped_checkpoint
    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

    disable_progress_bar()  # of loading weights: the commands show their own
    folder = str(shipped_checkpoint()) if name_or_path == DEMO else name_or_path
    model = MRPForDiffusionLM.from_pretrained(folder)
    # The config is given, because a published checkpoint's asks for code of its own to be run.
    return model, AutoTokenizer.from_pretrained(folder, config=model.config)


def load_backbone(name_or_path: str, **settings: Any) -> "tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]":
    """A backbone under a fresh head, and its tokenizer; `demo` means the shipped checkpoint's. For `settings` see
    `MRPForDiffusionLM.from_backbone`."""
    from transformers import AutoTokenizer

    from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

    if name_or_path == DEMO:
        demo, tokenizer = load_checkpoint(DEMO)
        own = {"mask_token_id": demo.config.mask_token_id, "block_length": demo.config.block_length}
        model = MRPForDiffusionLM.from_backbone(demo.backbone, **(own | settings))
        model.generation_config = demo.generation_config
        return model, tokenizer
    return MRPForDiffusionLM.from_backbone(name_or_path, **settings), AutoTokenizer.from_pretrained(name_or_path)
