"""The shipped model in the hands of other libraries: transformers' pipeline, PEFT."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase, pipeline

from mrp_hf.demo.shipped import shipped_checkpoint
from mrp_hf.demo.task import problems
from mrp_hf.modeling.modeling_mrp import MRPForDiffusionLM

CHAT = [{"role": "user", "content": problems("test", 1)[0].question}]


@pytest.fixture
def model() -> MRPForDiffusionLM:
    return MRPForDiffusionLM.from_pretrained(shipped_checkpoint(), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shipped_checkpoint())


@pytest.fixture(scope="module")
def inputs(tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    return tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True)


@pytest.mark.parametrize("mode", [None, "direct", "speculative", "remask"])
def test_pipeline(
    model: MRPForDiffusionLM, tokenizer: PreTrainedTokenizerBase, inputs: BatchEncoding, mode: str | None
) -> None:
    # The pipeline samples unless it is told otherwise.
    written = pipeline("text-generation", model=model, tokenizer=tokenizer)(CHAT, do_sample=False, mrp_mode=mode)
    new_tokens = model.generate(**inputs, mrp_mode=mode)[0, inputs["input_ids"].shape[1] :]
    expected = tokenizer.decode(new_tokens, skip_special_tokens=True)
    assert written[0]["generated_text"] == [*CHAT, {"role": "assistant", "content": expected}]
    assert len(expected) > 40


def test_pipeline_samples_with_a_seed_the_same_in_every_lossless_mode(
    model: MRPForDiffusionLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    plain, again, other = (
        write(CHAT, do_sample=True, temperature=1.0, **fields)
        for fields in ({"seed": 5}, {"seed": 5, "mrp_mode": "speculative"}, {"seed": 6})
    )
    assert plain == again
    assert plain != other


@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_generate_with_a_lora_adapter_on_the_backbone(
    model: MRPForDiffusionLM, inputs: BatchEncoding, task_type: str | None
) -> None:
    without = model.generate(**inputs)
    torch.manual_seed(0)
    config = LoraConfig(
        r=4, target_modules=r"backbone\..*\.(q_proj|v_proj)", init_lora_weights=False, task_type=task_type
    )
    adapted = get_peft_model(model, config)
    plain = adapted.generate(**inputs)
    assert torch.equal(adapted.generate(**inputs, mrp_mode="speculative"), plain)
    assert not torch.equal(plain, without)
    with adapted.disable_adapter():
        assert torch.equal(adapted.generate(**inputs), without)
    merged = adapted.merge_and_unload()
    assert isinstance(merged, MRPForDiffusionLM)
    assert torch.equal(merged.generate(**inputs), plain)
