"""The checkpoint that ships with the package."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mrp_hf.demo.shipped import read_figures, shipped_checkpoint
from mrp_hf.demo.task import problems
from mrp_hf.demo.tokenizer import build_tokenizer
from mrp_hf.evaluation import ExactAnswer, decode
from mrp_hf.modeling.checkpoint_mrp import write_code
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM


@pytest.fixture(scope="module")
def shipped() -> tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]:
    folder = shipped_checkpoint()
    return MRPForDiffusionLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_it_is_small_and_its_head_is_smaller() -> None:
    folder = shipped_checkpoint()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 12e6
    figures = read_figures(folder)
    assert figures is not None
    assert figures["parameters"]["head_share"] <= 0.15
    explained = figures["residual_explained"]
    assert len(explained["residual"]) == len(explained["direct"]) == 4
    assert all(share >= 0.5 for share in explained["residual"])


def test_its_code_is_what_the_sources_export(tmp_path: Path) -> None:
    write_code(tmp_path)
    folder = shipped_checkpoint()
    exported = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert {path.name: path.read_text() for path in folder.glob("*.py")} == exported


def test_its_tokenizer_is_the_one_that_the_task_builds(
    shipped: tuple[MRPForDiffusionLM, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = shipped
    built = build_tokenizer()
    assert tokenizer.get_vocab() == built.get_vocab()
    assert tokenizer.chat_template == built.chat_template
    assert model.config.mask_token_id == built.mask_token_id
    assert model.generation_config.pad_token_id == built.pad_token_id


def test_it_solves_held_out_problems_and_speculative_answers_are_the_same(
    shipped: tuple[MRPForDiffusionLM, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = shipped
    assert model.config.mrp_head_trained
    chosen = problems("test", 24)
    questions = [problem.question for problem in chosen]
    plain = decode(model, tokenizer, questions, batch_size=24)
    speculative = decode(model, tokenizer, questions, batch_size=24, mrp_mode="speculative", mrp_num_lookahead_steps=3)
    assert speculative.tokens == plain.tokens
    assert sum(speculative.forwards) < 0.8 * sum(plain.forwards)
    graph = decode(model, tokenizer, questions, batch_size=24, mrp_mode="speculative", mrp_num_candidates=16)
    assert graph.tokens == plain.tokens
    assert sum(graph.forwards) < 0.45 * sum(plain.forwards)
    scores = ExactAnswer().compute(predictions=plain.texts, references=[problem.total for problem in chosen])
    assert scores["exact_answer"] >= 0.9
