"""Where rows end, what follows, and what is never written or touched."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from mrp_hf import MRPGenerationConfig

from .helpers import EOS, MASK, PAD, WAYS, ScriptedModel, answers, counts, draw_prompt, pad, run, script

A, B, C = 0, 1, 2
END, SCRIPT_PAD, SCRIPT_MASK = 5, 6, 7  # of a scripted model with 8 tokens


@pytest.fixture(scope="module")
def model(small_model):
    return small_model(seed=2)


def tell(choices, prompt=(A, B), **fields):
    """Decode behind a prompt with scripted logits, the prompt's own positions included."""
    model = ScriptedModel(script([{}] * len(prompt) + choices))
    ids = torch.tensor([list(prompt)])
    settings = {"eos_token_id": END, "return_dict_in_generate": True, "max_new_tokens": len(choices)}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), **settings | fields)
    return output.sequences[0, len(prompt) :].tolist(), int(output.mrp_stats.backbone_forwards[0])


SPECULATIVE = {"mrp_mode": "speculative", "mrp_drafter": "backbone"}


# End of sequence


def test_row_ends_when_nothing_masked_precedes_its_first_end():
    assert tell([{END: 0.9}, {B: 0.5}]) == ([END], 1)
    assert tell([{B: 0.5}, {END: 0.9}]) == ([B, END], 2)
    # The second block is at its third of four reveals when its first three places are full.
    second = [{B: 0.8}, {END: 0.7}, {B: 0.9}, {C: 0.6}]
    assert tell([{A: 0.9}, {B: 0.8}, *second, *[{A: 0.9}] * 4]) == ([A, B, B, END], 2 + 3)


def test_first_end_in_the_text_counts_not_the_first_revealed():
    first, second = {END: 0.6}, {END: 0.9}
    assert tell([first, second, *[{B: 0.9}] * 4]) == ([END], 2)


def test_end_behind_the_limit_is_none():
    """The last block is denoised whole, then cut: what lies behind the cut does not end the row early."""
    assert tell([{B: 0.5}, {END: 0.9}], max_new_tokens=1) == ([B], 2)


def test_any_of_several_ends():
    choices = [{B: 0.8}, {C: 0.7}, {A: 0.9}, {END: 0.9}, *[{A: 0.9}] * 2]
    assert tell(choices, eos_token_id=[END, C]) == ([B, C], 2)
    assert tell(choices, eos_token_id=[END]) == ([B, C, A, END], 4)
    assert tell(choices, eos_token_id=None)[0] == [B, C, A, END, A, A]


def test_end_in_the_prompt_is_text():
    """Even inside the block that is denoised first."""
    assert tell([{A: 0.9}, *[{B: 0.8}] * 4], prompt=(END, END, END)) == ([A, B, B, B, B], 5)


def test_speculative_rows_end_the_same():
    for choices in (
        [{END: 0.9}, {B: 0.5}],
        [{B: 0.5}, {END: 0.9}],
        [{A: 0.9}, {B: 0.8}, {B: 0.8}, {END: 0.7}, {B: 0.9}, {C: 0.6}, *[{A: 0.9}] * 4],
    ):
        for steps in (1, 2, 3):
            found = tell(choices, **SPECULATIVE, mrp_num_lookahead_steps=steps)
            assert found[0] == tell(choices)[0]
            assert found[1] <= tell(choices)[1]


@pytest.mark.parametrize("way", WAYS)
def test_only_padding_follows_and_other_rows_go_on(model, way):
    prompts = [draw_prompt(length) for length in (4, 7, 2)]
    free = answers(run(model, prompts, max_new_tokens=14, **WAYS[way]))
    eos = next(token for token in free[0][1:8] if token != free[0][0])
    output = run(model, prompts, max_new_tokens=14, eos_token_id=eos, **WAYS[way])
    kept = answers(output)  # asserts that padding follows
    for row, answer in zip(free, kept, strict=True):
        cut = row.index(eos) + 1 if eos in row else 14
        assert answer == row[:cut]
    assert output.sequences.shape[1] == 7 + max(map(len, kept))


def test_a_row_may_pad_with_its_end_token(model):
    prompts = [draw_prompt(4), draw_prompt(7)]
    free = answers(run(model, prompts, max_new_tokens=14))
    eos = free[0][1]
    sequences = run(model, prompts, max_new_tokens=14, eos_token_id=eos, pad_token_id=eos).sequences
    row = sequences[0, 7:].tolist()
    first = row.index(eos)
    assert row[:first] == free[0][:first]
    assert set(row[first:]) == {eos}


# Length


@pytest.mark.parametrize("way", WAYS)
def test_cut_to_any_length(model, way):
    """A short answer is the beginning of a long one that has the same blocks."""
    prompt = draw_prompt(6)
    longest = answers(run(model, [prompt], max_new_tokens=10, **WAYS[way]))[0]
    for length in (1, 2, 3, 7, 9):
        output = run(model, [prompt], max_new_tokens=length, **WAYS[way])
        assert output.sequences.shape == (1, 6 + length)
        assert answers(output) == [longest[:length]]


def test_max_length_counts_real_tokens(model):
    prompts = [draw_prompt(length) for length in (4, 7, 2)]
    output = run(model, prompts, max_length=12)
    assert [len(answer) for answer in answers(output)] == [8, 5, 10]
    for prompt, answer in zip(prompts, answers(output), strict=True):
        assert answer == answers(run(model, [prompt], max_new_tokens=12 - len(prompt)))[0]


def test_max_new_tokens_wins_over_max_length_of_a_weaker_layer(model):
    output = run(model, [draw_prompt(4)], generation_config=MRPGenerationConfig(max_length=12), max_new_tokens=3)
    assert output.sequences.shape == (1, 7)
    output = run(model, [draw_prompt(4)], generation_config=MRPGenerationConfig(max_new_tokens=3), max_length=12)
    assert output.sequences.shape == (1, 12)


def test_256_new_tokens_unless_said(model):
    assert run(model, [draw_prompt(3)], confidence_threshold=0.0, mrp_mode="remask").sequences.shape == (1, 3 + 256)


def test_the_last_position_of_the_model(small_model):
    model = small_model(max_position_embeddings=16)
    output = run(model, [draw_prompt(7)], max_new_tokens=9)
    assert output.sequences.shape == (1, 16)
    for way in WAYS.values():
        assert len(answers(run(model, [draw_prompt(7), draw_prompt(2)], max_length=16, **way))[1]) == 14


# What is never written


@pytest.mark.parametrize("fields", [{}, {"do_sample": True, "seed": 0, "temperature": 5.0}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("way", WAYS)
def test_mask_token_is_never_generated(small_model, way, fields):
    """Not even where it is by far the most likely."""
    model = small_model(seed=2)
    hidden = model(torch.tensor([draw_prompt(12)])).last_hidden_state.mean((0, 1))
    model.backbone.lm_head.weight.data[MASK] = 30 * hidden
    output = run(model, [draw_prompt(5), draw_prompt(10)], max_new_tokens=30, **WAYS[way], **fields)
    assert not any(MASK in answer for answer in answers(output))
    assert [len(answer) for answer in answers(output)] == [30, 30]


def test_mask_token_takes_no_probability():
    """Confidences are those of a softmax without the mask token."""
    logits = script([{A: 0.95}, {B: 0.95}, {C: 0.95}, {A: 0.5}])
    logits[:, SCRIPT_MASK] = 4.0
    model = ScriptedModel(logits)
    ids = torch.zeros(1, 0, dtype=torch.long)
    output = model.generate(
        ids,
        attention_mask=ids,
        max_new_tokens=4,
        remasking_strategy="low_confidence_dynamic",
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == [[A, B, C, A]]
    assert output.mrp_stats.forwards["denoise"].tolist() == [2]


@pytest.mark.parametrize("way", WAYS)
def test_suppressed_tokens(model, way):
    prompts = [draw_prompt(5), draw_prompt(10)]
    fields = {"max_new_tokens": 16, **WAYS[way]}
    favourites = {token for answer in answers(run(model, prompts, **fields)) for token in answer}
    found = answers(run(model, prompts, suppress_tokens=sorted(favourites), **fields))
    assert not favourites & {token for answer in found for token in answer}


# Remasking


def remask(proposed, corrected, **fields):
    """One block of four, nothing before it; counts of the row."""
    model = ScriptedModel(script(proposed), script(corrected))
    ids = torch.zeros(1, 0, dtype=torch.long)
    output = model.generate(
        ids, attention_mask=ids, max_new_tokens=4, mrp_mode="remask", return_dict_in_generate=True, **fields
    )
    found = counts(output)
    return output.sequences[0].tolist(), {name: found[name] for name in ("denoise", "head", "remasked")}


SURE = [{A: 0.95}, {B: 0.95}, {C: 0.95}, {A: 0.95}]
DOUBTS = [{A: 0.3}, {B: 0.8}, {C: 0.6}, {A: 0.96}]


def test_remask_takes_back_what_the_head_doubts():
    # All four; 0 and 2 come back. Both again; 2 is the surer one and stays. 0 alone: nobody judges it.
    expected = {"denoise": 3, "head": 2, "remasked": 3}
    assert remask(SURE, DOUBTS, remask_threshold=0.7) == ([A, B, C, A], expected)


def test_remask_threshold_is_the_confidence_threshold_unless_given():
    assert remask(SURE, DOUBTS)[1] == {"denoise": 4, "head": 3, "remasked": 6}
    assert remask(SURE, DOUBTS, confidence_threshold=0.7)[1] == {"denoise": 3, "head": 2, "remasked": 3}


def test_remask_threshold_zero_takes_nothing_back():
    assert remask(SURE, DOUBTS, remask_threshold=0.0)[1] == {"denoise": 1, "head": 1, "remasked": 0}


def test_remask_threshold_is_met_by_an_equal_confidence():
    certain = [{A: 1.0}, {B: 1.0}, {C: 1.0}, {A: 1.0}]
    assert remask(SURE, certain, remask_threshold=1.0)[1] == {"denoise": 1, "head": 1, "remasked": 0}


def test_remask_keeps_the_lowest_of_equally_sure_ones():
    assert remask(SURE, [{A: 0.5}, {B: 0.5}, {C: 0.5}, {A: 0.5}], remask_threshold=1.0) == (
        [A, B, C, A],
        {"denoise": 4, "head": 3, "remasked": 6},
    )


def test_remask_judges_no_lone_token():
    lone = [{A: 0.95}, {B: 0.5}, {C: 0.4}, {A: 0.3}]
    assert remask(lone, DOUBTS, remask_threshold=1.0) == ([A, B, C, A], {"denoise": 4, "head": 0, "remasked": 0})


def test_remask_with_several_static_reveals_a_step():
    fields = {"remasking_strategy": "low_confidence_static", "denoising_steps": 2, "remask_threshold": 0.7}
    # 0 and 1: 0 comes back. 0 and 2: 2 is surer, 0 comes back. 0 and 3: 0 comes back. 0.
    assert remask(SURE, DOUBTS, **fields)[1] == {"denoise": 4, "head": 3, "remasked": 3}


@pytest.mark.parametrize("rule", ["low_confidence_static", "low_confidence_dynamic", "sequential"])
def test_remasking_everything_ends(model, rule):
    output = run(
        model,
        [draw_prompt(3), draw_prompt(8)],
        mrp_mode="remask",
        remasking_strategy=rule,
        confidence_threshold=0.0,
        remask_threshold=1.0,
        denoising_steps=1,
        max_new_tokens=13,
    )
    assert not any(MASK in answer for answer in answers(output))
    # One token stays a step, and the last of each block alone is nobody's to judge.
    assert counts(output, 1)["denoise"] == 16
    assert counts(output, 1)["remasked"] == 4 * (3 + 2 + 1)


def test_remask_threshold_zero_is_plain_dynamic(model):
    fields = {"max_new_tokens": 13, "confidence_threshold": 0.3, "remasking_strategy": "low_confidence_dynamic"}
    prompts = [draw_prompt(3), draw_prompt(8)]
    plain, never = run(model, prompts, **fields), run(model, prompts, mrp_mode="remask", remask_threshold=0.0, **fields)
    assert answers(plain) == answers(never)
    assert plain.mrp_stats.forwards["denoise"].tolist() == never.mrp_stats.forwards["denoise"].tolist()


# What is not touched


@pytest.mark.parametrize("way", WAYS)
def test_nothing_given_is_modified(model, way):
    ids, mask = pad([draw_prompt(5), draw_prompt(10)])
    config = MRPGenerationConfig(max_new_tokens=6, pad_token_id=None, seed=[1, 2], do_sample=True, **WAYS[way])
    before = [copy.deepcopy(part) for part in (ids, mask, config.to_dict(), model.generation_config.to_dict())]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    settings = vars(model.config) | {}
    model.generate(ids, attention_mask=mask, generation_config=config, eos_token_id=EOS)
    after = [ids, mask, config.to_dict(), model.generation_config.to_dict()]
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert after[2:] == before[2:]
    assert vars(model.config) == settings
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_no_state_stays_on_the_model(model):
    attributes = set(vars(model))
    run(model, [draw_prompt(5)], max_new_tokens=4)
    assert set(vars(model)) == attributes


def test_gradients_are_off_and_training_mode_is_kept(small_model):
    model = small_model().train()
    output = run(model, [draw_prompt(5)], max_new_tokens=4, mrp_mode="direct")
    assert model.training
    assert not output.tokens_per_forward.requires_grad


def test_plain_config_without_eos_or_pad(small_model):
    """A missing padding token becomes the first end-of-sequence token; without either, padding is 0."""
    model = small_model(seed=2)
    model.generation_config = MRPGenerationConfig()
    ids, mask = pad([draw_prompt(4), draw_prompt(7)])
    free = model.generate(ids, attention_mask=mask, max_new_tokens=14)
    eos = int(free[0, 8])
    sequences = model.generate(ids, attention_mask=mask, max_new_tokens=14, eos_token_id=[eos, PAD])
    first = sequences[0, 7:].tolist().index(eos)
    if sequences.shape[1] > 7 + first + 1:
        assert set(sequences[0, 7 + first :].tolist()) == {eos}
    model.generation_config = GenerationConfig()
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=14), free)
