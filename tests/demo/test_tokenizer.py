from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mrp_hf.demo.task import problems
from mrp_hf.demo.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_texts_come_back_unchanged_and_without_unknown_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    for problem in problems("train", 300):
        for text in (problem.question, problem.answer):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids).strip() == text


def test_chat_template_marks_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    chat = [{"role": "user", "content": "tom has 34 pens."}, {"role": "assistant", "content": "#### 34"}]
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    assert whole["input_ids"][: len(prompt)] == prompt
    answer = [token for token, mine in zip(whole["input_ids"], whole["assistant_masks"], strict=True) if mine]
    assert answer == whole["input_ids"][len(prompt) :]
    assert answer[-1] == tokenizer.eos_token_id


def test_saved_and_loaded_it_is_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.padding_side == "left"
    assert loaded.mask_token_id == tokenizer.mask_token_id
    text = problems("test", 1)[0].answer
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
