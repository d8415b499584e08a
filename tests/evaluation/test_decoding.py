from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mrp_hf.evaluation import decode, decode_batch
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

QUESTIONS = ["tom has 34 pens.", "what is the total?", "ann has 12 books. then gets 15. how many in all?"]


@pytest.fixture(scope="module")
def loaded(demo_folder: Path) -> tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]:
    model = MRPForDiffusionLM.from_pretrained(demo_folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(demo_folder)


def test_decode_gives_every_prompt_what_it_gives_alone(
    loaded: tuple[MRPForDiffusionLM, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = loaded
    done = []
    together = decode(model, tokenizer, QUESTIONS, batch_size=2, on_batch=done.append, max_new_tokens=20)
    assert done == [2, 1]
    assert len(together.seconds) == 2
    for row, question in enumerate(QUESTIONS):
        alone = decode_batch(model, tokenizer, [question], max_new_tokens=20)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.texts[0] == together.texts[row]
        assert alone.forwards[0] == together.forwards[row]


def test_answers_keep_the_end_of_sequence_token_and_nothing_behind_it(
    loaded: tuple[MRPForDiffusionLM, PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = loaded
    free = decode(model, tokenizer, QUESTIONS, max_new_tokens=20)
    end = free.tokens[0][3]
    decoded = decode(model, tokenizer, QUESTIONS, max_new_tokens=20, eos_token_id=end)
    assert decoded.tokens[0][-1] == end
    assert decoded.tokens[0].count(end) == 1
    assert decoded.tokens_per_forward == sum(map(len, decoded.tokens)) / sum(decoded.forwards)


def test_lookahead_steps_are_counted(loaded: tuple[MRPForDiffusionLM, PreTrainedTokenizerBase]) -> None:
    model, tokenizer = loaded
    direct = decode(model, tokenizer, QUESTIONS, mrp_mode="direct", mrp_num_lookahead_steps=3)
    plain = decode(model, tokenizer, QUESTIONS)
    assert sum(direct.head_forwards) > 0 == sum(plain.head_forwards)
    assert sum(direct.forwards) < sum(plain.forwards)
