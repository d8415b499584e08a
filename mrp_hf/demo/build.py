"""Rebuild the demo checkpoint from nothing: backbone, head, ablation head, figures.

    work/backbone          a backbone trained from scratch             (`mrp_hf.demo.backbone`)
    work/head-residual     the head that is shipped, and its figures   (`MRPTrainer`)
    work/head-direct       the direct ablation of the same size; only its figures are kept
    output                 the checkpoint: model, tokenizer, generation config, figures.json

A stage whose result exists is not repeated, and a stage that was stopped goes on where it stopped.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import datasets
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import get_last_checkpoint

from mrp_hf.demo.backbone import BLOCK_LENGTH, BackboneRecipe, encode, train_backbone
from mrp_hf.demo.shipped import write_figures
from mrp_hf.demo.task import Split, problems
from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM
from mrp_hf.training import MRPTrainer, MRPTrainingArguments

Prediction = Literal["residual", "direct"]

# The longest answer has 52 tokens, end-of-sequence included.
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class HeadRecipe:
    """Size and training of the demo's head; the defaults made the shipped one."""

    num_mrp_layers: int = 1
    head_initialization: str = "backbone"
    lookahead_steps: int = 4
    max_reveal: int = 4
    steps: int = 3000
    problems_per_step: int = 16
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    save_steps: int = 100
    evaluated_problems: int = 512
    seed: int = 0

    def training_arguments(self, folder: Path) -> MRPTrainingArguments:
        return MRPTrainingArguments(
            output_dir=str(folder),
            num_lookahead_steps=self.lookahead_steps,
            reveal_max=self.max_reveal,
            max_steps=self.steps,
            per_device_train_batch_size=self.problems_per_step,
            per_device_eval_batch_size=64,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            save_steps=self.save_steps,
            save_total_limit=1,
            seed=self.seed,
            dataloader_pin_memory=False,
            report_to="none",
        )


def build_demo_checkpoint(
    output: Path,
    work: Path,
    *,
    backbone: Path | None = None,
    backbone_recipe: BackboneRecipe | None = None,
    head_recipe: HeadRecipe | None = None,
) -> None:
    """Write the demo checkpoint to `output`, with intermediate results in `work`.

    Args:
        backbone (`Path`, *optional*): folder of a backbone that `train_backbone` has made; without it one is trained.
        backbone_recipe, head_recipe (*optional*): sizes and lengths of training; by default the shipped ones.
    """
    head_recipe = head_recipe or HeadRecipe()
    if backbone is None:
        backbone = work / "backbone"
        if not (backbone / "recipe.json").exists():  # the last file that `train_backbone` writes
            train_backbone(backbone, build_tokenizer(), backbone_recipe or BackboneRecipe())
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    results = {
        prediction: _train_head(backbone, work / f"head-{prediction}", prediction, tokenizer, head_recipe)
        for prediction in ("residual", "direct")
    }
    model = MRPForDiffusionLM.from_pretrained(work / "head-residual" / "model")
    model.config.backbone_name_or_path = None  # a folder of this machine
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    head, whole = model.mrp_head.num_parameters(), model.backbone.num_parameters()
    write_figures(
        output,
        {
            "parameters": {"backbone": whole, "head": head, "head_share": head / whole},
            "backbone_recipe": json.loads((backbone / "recipe.json").read_text()),
            "head_recipe": asdict(head_recipe),
            "head_minutes": {name: result["minutes"] for name, result in results.items()},
            "kl_before": results["residual"]["kl_before"],
            "kl_after": {name: result["kl_after"] for name, result in results.items()},
            "residual_explained": {name: result["residual_explained"] for name, result in results.items()},
        },
    )


def encoded_problems(split: Split, count: int, tokenizer: PreTrainedTokenizerBase) -> datasets.Dataset:
    """`input_ids` and `labels` of the first `count` problems of `split`."""
    return datasets.Dataset.from_list([encode(problem, tokenizer) for problem in problems(split, count)])


def _train_head(
    backbone: Path, folder: Path, prediction: Prediction, tokenizer: PreTrainedTokenizerBase, recipe: HeadRecipe
) -> dict[str, Any]:
    """Train and evaluate one head; `folder` gets `model/` and, last, `result.json`, which is returned."""
    result_file = folder / "result.json"
    if result_file.exists():
        return json.loads(result_file.read_text())
    set_seed(recipe.seed)  # of the fresh head
    model = MRPForDiffusionLM.from_backbone(
        backbone,
        num_mrp_layers=recipe.num_mrp_layers,
        mask_token_id=tokenizer.mask_token_id,
        block_length=BLOCK_LENGTH,
        mrp_prediction=prediction,
        head_initialization=recipe.head_initialization,
    )
    model.generation_config.max_new_tokens = MAX_NEW_TOKENS
    trainer = MRPTrainer(
        model=model,
        args=recipe.training_arguments(folder / "trainer"),
        train_dataset=encoded_problems("train", recipe.steps * recipe.problems_per_step, tokenizer),
        eval_dataset=encoded_problems("test", recipe.evaluated_problems, tokenizer),
        processing_class=tokenizer,
    )
    start = time.monotonic()
    resumed = (folder / "trainer").exists() and get_last_checkpoint(folder / "trainer") is not None
    trainer.train(resume_from_checkpoint=resumed)
    minutes = (time.monotonic() - start) / 60
    metrics = trainer.evaluate()
    steps = range(1, recipe.lookahead_steps + 1)
    result = {
        name: [metrics[f"eval_{name}_{k}"] for k in steps] for name in ("kl_before", "kl_after", "residual_explained")
    } | {"minutes": None if resumed else minutes}
    model.save_pretrained(folder / "model")
    result_file.write_text(json.dumps(result, indent=1) + "\n")
    return result
