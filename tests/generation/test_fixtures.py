"""Decoding equals what the upstream implementations gave."""

import json

import pytest
import torch
from safetensors.torch import load_file

from mrp_hf import MRPForDiffusionLM

# Attention implementation, drafter, lookahead steps.
SPECULATION = [
    *[("sdpa", drafter, steps) for drafter in ("head", "backbone") for steps in (1, 3, 6)],
    ("eager", "head", 3),
    ("eager", "backbone", 6),
]


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def attention(request):
    return request.param


@pytest.fixture(scope="module")
def load(attention, fixtures):
    """Loads a fixture with an attention implementation: model, expected tensors, expected.json."""

    def get(name, num_mrp_layers=1):
        folder = fixtures / name
        torch.manual_seed(0)  # of the fresh head
        model = MRPForDiffusionLM.from_backbone(
            folder, num_mrp_layers=num_mrp_layers, dtype=torch.float32, attn_implementation=attention
        )
        return model, *read_expected(folder)

    return get


@pytest.fixture(scope="module")
def published(attention, fixtures):
    """The model in the published layout, with its own head."""
    folder = fixtures / "sdar-mrp-official"
    model = MRPForDiffusionLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return model, *read_expected(folder)


def read_expected(folder):
    return load_file(folder / "expected.safetensors"), json.loads((folder / "expected.json").read_text())


def complete(model, prompt, sequence, **fields):
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=sequence.shape[1] - prompt.shape[1],
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        **fields,
    )


@pytest.mark.parametrize("name", ["sdar", "sdar-block16"])
def test_static(load, name):
    model, tensors, expected = load(name)
    output = complete(model, tensors["prompt"], tensors["sequence"])
    assert torch.equal(output.sequences, tensors["sequence"])
    assert output.mrp_stats.forwards["denoise"].tolist() == [len(expected["reveal_order"])]


@pytest.mark.parametrize("name", ["sdar", "sdar-block16"])
def test_static_order_of_reveals(load, name):
    """After n steps, the first n reveals of the upstream order stand in the text, and no others."""
    model, tensors, expected = load(name, num_mrp_layers=0)
    drafts = []

    class Recorder:
        def put(self, value): ...

        def put_draft(self, value):
            drafts.append(value.tolist())

        def end(self): ...

    complete(model, tensors["prompt"], tensors["sequence"], streamer=Recorder())
    order, block_length = expected["reveal_order"], expected["block_length"]
    prompt_length, end = tensors["prompt"].shape[1], tensors["sequence"].shape[1]
    assert len(drafts) == len(order) - 1
    for step, draft in enumerate(drafts, start=1):
        revealed = dict(order[:step])
        block = min(position for position, _ in order[step:]) // block_length
        shown = range(max(prompt_length, block * block_length), min(end, (block + 1) * block_length))
        assert draft == [revealed.get(position, model.config.mask_token_id) for position in shown]


@pytest.mark.parametrize("name", ["sdar", "sdar-block16"])
@pytest.mark.parametrize(("attention", "drafter", "lookahead_steps"), SPECULATION, indirect=["attention"])
def test_speculative(load, name, drafter, lookahead_steps):
    model, tensors, _ = load(name)
    output = complete(
        model,
        tensors["prompt"],
        tensors["sequence"],
        mrp_mode="speculative",
        mrp_drafter=drafter,
        mrp_num_lookahead_steps=lookahead_steps,
    )
    assert torch.equal(output.sequences, tensors["sequence"])


def test_published_static(published):
    model, tensors, _ = published
    output = complete(model, tensors["prompt"], tensors["sequence_static"])
    assert torch.equal(output.sequences, tensors["sequence_static"])


@pytest.mark.parametrize("lookahead_steps", [1, 2, 3])
def test_published_direct(published, lookahead_steps):
    model, tensors, expected = published
    sequence = tensors[f"sequence_direct_k{lookahead_steps}"]
    output = complete(model, tensors["prompt"], sequence, mrp_mode="direct", mrp_num_lookahead_steps=lookahead_steps)
    assert torch.equal(output.sequences, sequence)
    assert output.mrp_stats.forwards["denoise"].tolist() == [expected[f"direct_k{lookahead_steps}_denoise_forwards"]]


@pytest.mark.parametrize(("attention", "drafter", "lookahead_steps"), SPECULATION, indirect=["attention"])
def test_published_speculative(published, drafter, lookahead_steps):
    model, tensors, _ = published
    output = complete(
        model,
        tensors["prompt"],
        tensors["sequence_static"],
        mrp_mode="speculative",
        mrp_drafter=drafter,
        mrp_num_lookahead_steps=lookahead_steps,
    )
    assert torch.equal(output.sequences, tensors["sequence_static"])


# Bidirectional backbones. LLaDA: semi-autoregressive blocks; Dream: one block, logits shifted by one.
BIDIRECTIONAL = [
    ("llada", "sequence_block16", {"block_length": 16}),
    ("llada", "sequence_block16_steps8", {"block_length": 16, "denoising_steps": 8}),
    ("llada", "sequence_block8", {"block_length": 8}),
    ("llada", "sequence_block8_steps8", {"block_length": 8, "denoising_steps": 4}),
    ("dream", "sequence", {}),
]


@pytest.mark.parametrize(("name", "sequence", "fields"), BIDIRECTIONAL)
def test_bidirectional(load, name, sequence, fields):
    model, tensors, _ = load(name)
    expected = tensors[sequence]
    plain = complete(model, tensors["prompt"], expected, **fields)
    assert torch.equal(plain.sequences, expected)
    assert plain.mrp_stats.forwards["denoise"].tolist() == [8 if "steps8" in sequence else 16]
    for drafter in ("head", "backbone"):
        output = complete(model, tensors["prompt"], expected, mrp_mode="speculative", mrp_drafter=drafter, **fields)
        assert torch.equal(output.sequences, expected)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_bidirectional_logits_and_hidden_states(load, name):
    model, tensors, _ = load(name)
    ids, shift = tensors["input_ids"], int(model.config.logit_shift)
    output = model(ids)
    for given, expected in ((output.logits, "logits"), (output.last_hidden_state, "last_hidden_state")):
        wanted = tensors[expected][:, : ids.shape[1] - shift]
        torch.testing.assert_close(given[:, shift:], wanted, atol=1e-4, rtol=0)


def test_order_of_reveals_of_a_bidirectional_backbone(load):
    """After n steps, the first n reveals of the upstream order stand in the text, and no others."""
    model, tensors, expected = load("dream")
    drafts = []

    class Recorder:
        def put(self, value): ...

        def put_draft(self, value):
            drafts.append(value.tolist())

        def end(self): ...

    complete(model, tensors["prompt"], tensors["sequence"], streamer=Recorder())
    order, start = expected["reveal_order"], tensors["prompt"].shape[1]
    assert len(drafts) == len(order) - 1
    for step, draft in enumerate(drafts, start=1):
        revealed = dict(order[:step])
        assert draft == [revealed.get(start + place, model.config.mask_token_id) for place in range(len(order))]
