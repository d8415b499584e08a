"""`MRPForDiffusionLM`: a frozen diffusion language model with a head that predicts residual logits."""

import logging
import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from ..generation.alignment_mrp import align
from ..generation.configuration_generation_mrp import MRPGenerationConfig
from ..generation.generation_mrp import MRPGenerationMixin
from ..generation.masks_mrp import (
    CLEAN,
    PADDING,
    additive,
    bidirectional_visibility,
    block_causal_visibility,
    blocks_of,
)
from .architectures_mrp import architecture_of
from .attaching_mrp import attach_head
from .checkpoint_mrp import AUTO_MAP, staged, write_code
from .configuration_mrp import CODE_VERSION, MRPConfig
from .head_mrp import MRPHead
from .head_only_mrp import REPOSITORY_OPTIONS, saving_head_only
from .loading_mrp import load_checkpoint
from .outputs_mrp import MRPOutput

logger = logging.getLogger(__name__)


class MRPForDiffusionLM(PreTrainedModel, MRPGenerationMixin):
    """A frozen diffusion language model (`backbone`) and a multi-token residual prediction head (`mrp_head`).

    Corrected logits after a reveal are the backbone's logits from before it plus the residual that the head predicts
    (arXiv 2605.18817). Only the head ever learns: the backbone stays in evaluation mode and takes no gradients.

    Args:
        config (`MRPConfig`): the configuration.
        backbone (`PreTrainedModel`, *optional*): a loaded native model; by default one is built from `config`.
        mrp_head (`MRPHead`, *optional*): a loaded head for it; by default one is built from `config`.
    """

    backbone: PreTrainedModel
    mrp_head: MRPHead | None

    config_class = MRPConfig
    generation_config_class = MRPGenerationConfig
    base_model_prefix = "backbone"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: MRPConfig, backbone: PreTrainedModel | None = None, mrp_head: MRPHead | None = None):
        config.check_values()
        super().__init__(config)
        self._architecture = architecture_of(config.backbone_config)
        for given in (backbone, mrp_head):
            # Else `post_init` would draw modules anew that were put in by hand, such as resized embeddings.
            for module in () if given is None else given.modules():
                module._is_hf_initialized = True  # type: ignore[assignment]
        if backbone is None:
            backbone = self._architecture.auto_class.from_config(config.backbone_config)
        self.backbone = backbone
        config.backbone_config = backbone.config
        self.mrp_head = mrp_head
        if mrp_head is None and config.num_mrp_layers > 0:
            head_config = MRPHead.config_for(
                backbone.config, config.num_mrp_layers, config.mrp_initializer_range, backbone.dtype
            )
            self.mrp_head = MRPHead._from_config(head_config)
        self.post_init()
        self._freeze_backbone()

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # the config passes the choice on to the backbone, whose class checks it

    def _freeze_backbone(self) -> None:
        self.backbone.requires_grad_(False)
        self.backbone.eval()

    def train(self, mode: bool = True) -> "MRPForDiffusionLM":
        """Training mode of the head; the backbone stays in evaluation mode, so that its logits are a fixed target."""
        super().train(mode)
        self.backbone.eval()
        return self

    # Loading and saving

    @classmethod
    def from_backbone(
        cls,
        name_or_path_or_model: str | os.PathLike[str] | PreTrainedModel,
        *,
        num_mrp_layers: int = 3,
        head_initialization: str = "normal",
        dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        attn_implementation: str | None = None,
        quantization_config: Any = None,
        trust_remote_code: bool = False,
        **overrides: Any,
    ) -> "MRPForDiffusionLM":
        """Put a fresh head on a diffusion language model.

        Args:
            name_or_path_or_model: folder, Hub name, or a loaded native model (which is frozen, not copied).
            num_mrp_layers (`int`, *optional*, defaults to 3): decoder layers of the head; 0 for none.
            head_initialization (`str`, *optional*, defaults to `"normal"`):
                `"normal"`: the published start, normal with `mrp_initializer_range`; `"backbone"`: a copy of the
                backbone's last layers, which learns sooner where the head is small.
            dtype, device_map, attn_implementation, quantization_config: as in `from_pretrained`; only for a backbone
                that is loaded here.
            trust_remote_code (`bool`, *optional*, defaults to `False`):
                Load a backbone of no known family by its own code. Then `mask_token_id`, `attention_pattern`,
                `logit_shift` and, where it has blocks, `block_length` must be given. The families of the table load
                into native classes, and their code is never run.
            overrides: `mask_token_id`, `block_length`, `attention_pattern`, `logit_shift`, `logit_scale`,
                `mrp_prediction`, `mrp_initializer_range`. Without them mask id and block length come from the
                backbone's config, its tokenizer, or its family's default, in this order.

        Raises:
            ValueError: if the backbone is none, is of no known family, does not fit its config, or leaves mask id or
                block length open.
            TypeError: for an unknown keyword.
        """
        loading = {
            "dtype": dtype,
            "device_map": device_map,
            "attn_implementation": attn_implementation,
            "quantization_config": quantization_config,
        }
        return attach_head(
            cls, name_or_path_or_model, num_mrp_layers, head_initialization, loading, trust_remote_code, overrides
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        *args: Any,
        backbone: str | os.PathLike[str] | PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `PreTrainedModel.from_pretrained`, for MRP checkpoints: full, head-only, and the published layout.

        Args:
            backbone (`str`, path or `PreTrainedModel`, *optional*):
                For a head-only checkpoint: a folder, Hub name or loaded model to take the backbone from, instead of the
                one that it names. Its weights must be those that the head was trained on.

        The config of a published checkpoint may be overridden in the same call: `mrp_prediction="direct"`, for example.

        Raises:
            ValueError: if the checkpoint lacks tensors of the model or holds them in other shapes (nothing is
                initialised afresh in silence), if it holds pickled weights, if it is none of MRP, or if a head's
                backbone cannot be found or is another one.
        """
        return load_checkpoint(
            cls, super().from_pretrained, pretrained_model_name_or_path, *args, backbone=backbone, **kwargs
        )

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        head_only: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Write weights, configs and the Python files that load them by `trust_remote_code=True` without the package.

        Every file is complete before it takes its name. Arguments are those of `PreTrainedModel.save_pretrained`, and:

        Args:
            head_only (`bool`, *optional*):
                Leave the backbone out. Loading fetches it from `config.backbone_name_or_path` and checks that it is
                the same one. By default only where the backbone runs by code of its own, which no checkpoint holds.
        """
        head_only = not self._architecture.native if head_only is None else head_only
        if not (head_only or self._architecture.native):
            raise ValueError(
                "`head_only` is False, but the backbone runs by code of its own, which a checkpoint cannot hold: leave "
                "it out, and loading fetches the backbone again."
            )
        if push_to_hub:
            raise ValueError("`push_to_hub=True` is not supported here: call `model.push_to_hub(repo_id)`.")
        self.config.auto_map = dict(AUTO_MAP)
        self.config.mrp_code_version = CODE_VERSION
        self.config.mrp_head_only, self.config.backbone_fingerprint = False, None
        saving = saving_head_only(self, state_dict, save_directory) if head_only else nullcontext(state_dict)
        with saving as tensors, staged(save_directory) as stage:
            super().save_pretrained(stage, is_main_process=is_main_process, state_dict=tensors, **kwargs)
            if is_main_process:
                write_code(stage)

    def adjust_generation_fn(  # type: ignore[override]
        self,
        generation_config: GenerationConfig | None,
        from_auto_class: bool,
        from_pipeline: str | None,
        pretrained_model_name_or_path: str | os.PathLike[str] | None,
        **kwargs: Any,
    ) -> None:
        """Called by `from_pretrained`: the inherited one would load a plain `GenerationConfig`.

        `kwargs` are all of `from_pretrained`'s; those that say where files are found are used. Overrides of the model's
        config are among the others, and `block_length` would be taken for a decoding option.
        """
        if generation_config is not None:
            self.generation_config = MRPGenerationConfig.from_dict(generation_config.to_dict())
        elif pretrained_model_name_or_path is not None:
            where = {name: value for name, value in kwargs.items() if name in REPOSITORY_OPTIONS}
            try:
                self.generation_config = MRPGenerationConfig.from_pretrained(
                    pretrained_model_name_or_path, _from_auto=from_auto_class, _from_pipeline=from_pipeline, **where
                )
            except OSError as error:
                if os.path.isfile(os.path.join(pretrained_model_name_or_path, GENERATION_CONFIG_NAME)):
                    raise ValueError(
                        f"the {GENERATION_CONFIG_NAME} of {os.fspath(pretrained_model_name_or_path)!r} cannot be read: "
                        f"{error}"
                    ) from error
                logger.info("No generation_config.json found, the default generation config is used.")

    # Embeddings are the backbone's

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.backbone.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As `PreTrainedModel.resize_token_embeddings`; the mask token must stay inside the vocabulary."""
        if new_num_tokens is not None and new_num_tokens <= self.config.mask_token_id:
            raise ValueError(
                f"`new_num_tokens` is {new_num_tokens}, which would cut off the mask token "
                f"{self.config.mask_token_id}: keep at least {self.config.mask_token_id + 1}."
            )
        embeddings = self.backbone.resize_token_embeddings(new_num_tokens, *args, **kwargs)
        self._freeze_backbone()
        return embeddings

    # What the decoding loops and the trainer call

    def backbone_hidden_states(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """h, the input of the LM head, as (rows, queries, hidden).

        Args:
            input_ids (`Tensor` of shape (rows, queries)): token ids.
            position_ids (`Tensor` of shape (rows, queries)): positions from each row's first real token.
            attention_mask (`Tensor` of shape (rows, 1, queries, keys)): additive mask of the model's dtype.
            cache (`Cache`, *optional*): the backbone's cache, written in place.
        """
        return self._architecture.hidden_states(self.backbone, input_ids, position_ids, attention_mask, cache)

    def mrp_step(
        self,
        input_ids: Tensor,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        """The accumulator after one lookahead step, as (rows, queries, hidden).

        The LM head is linear, so `project` of it gives corrected logits A + C_1 + … in one projection.

        Args:
            input_ids (`Tensor` of shape (rows, queries)): ids after the reveal.
            hidden_states (`Tensor` of shape (rows, queries, hidden)): h, or the accumulator of the step before.
            position_ids, attention_mask: as in `backbone_hidden_states`.
            cache (`Cache`, *optional*): the head's own cache, written in place.
        """
        predicted = self._head(input_ids, hidden_states, position_ids, attention_mask, cache)
        return self._accumulate(hidden_states, predicted)

    def _head(
        self,
        input_ids: Tensor,
        hidden_states: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        cache: Cache | None = None,
    ) -> Tensor:
        if self.mrp_head is None:
            raise ValueError("this model has no head (num_mrp_layers=0): attach one with `from_backbone`.")
        embeddings = self.get_input_embeddings()(input_ids)
        return self.mrp_head(embeddings, hidden_states, position_ids, attention_mask, cache)

    def _accumulate(self, hidden_states: Tensor, predicted: Tensor) -> Tensor:
        return predicted if self.config.mrp_prediction == "direct" else hidden_states + predicted

    def project(self, hidden_states: Tensor) -> Tensor:
        """Logits (..., vocabulary) of hidden states (..., hidden): the LM head's last linear layer, scaled."""
        logits = self.get_output_embeddings()(hidden_states)
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        revealed_ids: Tensor | None = None,
        cache: Cache | None = None,
        mrp_cache: Cache | None = None,
    ) -> MRPOutput:
        """Backbone logits for `input_ids` and, if `revealed_ids` is given, the head's residual after that reveal.

        Args:
            input_ids (`Tensor` of shape (batch, length)): a denoising state.
            attention_mask (`Tensor`, *optional*):
                (batch, length) padding mask, 1 on real tokens, from which positions and the block-causal mask follow;
                or an additive (batch, 1, length, keys) mask of the model's dtype.
            position_ids (`Tensor` of shape (batch, length), *optional*): by default counted over real tokens.
            revealed_ids (`Tensor` of shape (batch, length), *optional*): the state after the reveal.
            cache, mrp_cache (`Cache`, *optional*): caches of backbone and head; they need the 4D mask and positions.
        """
        position_ids, mask = self._positions_and_mask(input_ids, attention_mask, position_ids, cache)
        hidden = self.backbone_hidden_states(input_ids, position_ids, mask, cache)
        if self.config.logit_shift:
            if cache is not None:
                raise ValueError("`cache` cannot be used here where logits are shifted: call `backbone_hidden_states`.")
            hidden = torch.where(position_ids.unsqueeze(-1) == 0, hidden, align(hidden))
        output = MRPOutput(logits=self.project(hidden), last_hidden_state=hidden)
        if revealed_ids is not None:
            predicted = self._head(revealed_ids, hidden, position_ids, mask, mrp_cache)
            output.residual_logits = self.project(predicted)
            bias = self.get_output_embeddings().bias
            if bias is not None and self.config.mrp_prediction == "residual":
                output.residual_logits = output.residual_logits - bias * self.config.logit_scale  # A has it already
            output.mrp_hidden_state = self._accumulate(hidden, predicted)
        return output

    def _positions_and_mask(
        self, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Per-row positions and the additive 4D mask."""
        if attention_mask is not None and attention_mask.dim() == 4:
            if not attention_mask.is_floating_point():
                raise ValueError(f"a 4D `attention_mask` must be additive floats, got {attention_mask.dtype}.")
            if position_ids is None:
                raise ValueError("a 4D `attention_mask` needs `position_ids`.")
            return position_ids, attention_mask
        if cache is not None:
            raise ValueError("`cache` needs a 4D `attention_mask` and `position_ids`.")
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"`attention_mask` has shape {tuple(attention_mask.shape)}: it must be that of `input_ids`, "
                f"{tuple(input_ids.shape)}, or 4D."
            )
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if position_ids is None:
            position_ids = (real.cumsum(-1) - 1).clamp(min=0)
        if self.config.attention_pattern == "bidirectional":
            return position_ids, additive(bidirectional_visibility(real), self.dtype)
        copies = torch.where(real, CLEAN, PADDING)
        blocks = blocks_of(copies, position_ids, self.config.block_length)
        return position_ids, additive(block_causal_visibility(copies, blocks), self.dtype)
