"""What decoding costs is counted exactly, and perfect drafts cost what the arithmetic says."""

import pytest
import torch

from .helpers import PAD, WAYS, answers, blind, counts, draw_prompt, run, set_head


@pytest.fixture(scope="module")
def model(small_model):
    return small_model()


@pytest.fixture(scope="module")
def predictable(small_model):
    """Its positions look alike, so that what A says after a reveal is what it said before: every draft is right."""
    return set_head(blind(small_model(max_position_embeddings=128)), "zero")


def perfect_cost(prompt_length, new_tokens, block_length, lookahead_steps):
    """Forwards, queries and drafts of one row whose drafts are all right."""
    cost = {"denoise": 0, "verify": 0, "queries": 0, "proposed": [0] * lookahead_steps}
    riding, ready = prompt_length // block_length * block_length, False
    blocks = range(prompt_length // block_length, -(-(prompt_length + new_tokens) // block_length))
    for block in blocks:
        masks = min(block_length, (block + 1) * block_length - prompt_length)
        if not ready:
            # The first forward reads the masked block alone, behind whatever is not in the cache yet.
            cost["denoise"] += 1
            cost["queries"] += riding + block_length
        revealed, riding, ready = 1, block_length, False
        while revealed < masks:
            drafts = min(lookahead_steps, masks - revealed)
            cost["verify"] += 1
            cost["queries"] += (1 + drafts) * block_length
            for depth in range(drafts):
                cost["proposed"][depth] += 1
            if revealed + drafts == masks:
                # The full block was a candidate: its keys and values stay, and the next block was packed behind it.
                riding, ready = 0, block != blocks[-1]
                cost["queries"] += ready * block_length
            revealed = min(masks, revealed + 1 + drafts)
    return cost


@pytest.mark.parametrize("block_length", [1, 2, 4, 5, 8])
@pytest.mark.parametrize(
    ("drafter", "lookahead_steps"), [("head", 3), ("backbone", 1), ("backbone", 3), ("backbone", 6)]
)
def test_perfect_drafts(predictable, drafter, block_length, lookahead_steps):
    for prompt_length in (0, 19):
        output = run(
            predictable,
            [draw_prompt(prompt_length), draw_prompt(1)],
            mrp_mode="speculative",
            mrp_drafter=drafter,
            mrp_num_lookahead_steps=lookahead_steps,
            block_length=block_length,
            max_new_tokens=16,
        )
        found = counts(output)
        expected = perfect_cost(prompt_length, 16, block_length, lookahead_steps)
        assert {name: found[name] for name in expected} == expected
        assert found["accepted"] == found["proposed"]
        assert found["commit"] == found["prefill"] == 0
        forwards = found["denoise"] + found["verify"]
        assert found["tokens per forward"] == pytest.approx(16 / forwards)
        if prompt_length == 0 and 16 % block_length == 0:
            per_block = -(-block_length // (lookahead_steps + 1))
            assert forwards <= 16 // block_length * per_block + 1


def test_perfect_drafts_reveal_from_left_to_right(predictable):
    """Equal confidences: the lowest position comes first."""
    drafts = []

    class Recorder:
        def put(self, value): ...

        def put_draft(self, value):
            drafts.append((value == predictable.config.mask_token_id).tolist())

        def end(self): ...

    run(predictable, [draw_prompt(8)], max_new_tokens=4, streamer=Recorder())
    assert drafts == [[False, True, True, True], [False, False, True, True], [False, False, False, True]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompt_length", [1, 4, 11])
def test_counts_are_what_the_model_was_asked(small_model, monkeypatch, way, prompt_length):
    """One row: nothing in a forward is padding, except that a draft chain of another length cannot occur."""
    model = small_model(num_mrp_layers=1)
    asked = {"backbone": [], "head": 0}
    backbone, head = model.backbone_hidden_states, model.mrp_step

    def count_backbone(input_ids, *args, **kwargs):
        asked["backbone"].append(input_ids.numel())
        return backbone(input_ids, *args, **kwargs)

    def count_head(*args, **kwargs):
        asked["head"] += 1
        return head(*args, **kwargs)

    monkeypatch.setattr(model, "backbone_hidden_states", count_backbone)
    monkeypatch.setattr(model, "mrp_step", count_head)
    output = run(model, [draw_prompt(prompt_length)], max_new_tokens=13, confidence_threshold=0.4, **WAYS[way])
    found = counts(output)
    assert found["queries"] == sum(asked["backbone"])
    assert found["denoise"] + found["verify"] == len(asked["backbone"])
    assert found["head"] == asked["head"]
    assert found["tokens per forward"] == pytest.approx(13 / len(asked["backbone"]))


def test_plain_query_tokens(model):
    """The prompt's whole blocks ride with the first forward, each finished block with the next one's first."""
    found = counts(run(model, [draw_prompt(9)], max_new_tokens=9))
    assert found["denoise"] == 3 + 4 + 4
    assert found["queries"] == 8 + 4 * (3 + 4 + 4) + 2 * 4


def test_a_finished_row_costs_nothing_more(model):
    prompts = [draw_prompt(14), draw_prompt(2)]
    output = run(model, prompts, max_length=16)
    assert counts(output, 0)["denoise"] == 2
    assert counts(output, 1)["denoise"] == 14
    assert counts(output, 0)["queries"] == 12 + 2 * 4


def test_tokens_per_forward_counts_the_end_of_sequence_and_nothing_behind(model):
    answer = answers(run(model, [draw_prompt(4)], max_new_tokens=12))[0]
    eos = answer[5]
    output = run(model, [draw_prompt(4)], max_new_tokens=12, eos_token_id=eos)
    kept = answer.index(eos) + 1
    assert output.sequences.shape == (1, 4 + kept)
    forwards = counts(output)["denoise"]
    assert counts(output)["tokens per forward"] == pytest.approx(kept / forwards)


@pytest.mark.parametrize("way", WAYS)
def test_output_types(model, way):
    output = run(model, [draw_prompt(5), draw_prompt(2)], max_new_tokens=5, **WAYS[way])
    steps = WAYS[way].get("mrp_num_lookahead_steps", 3) if "speculative" in way else 0
    stats = output.mrp_stats
    assert output.tokens_per_forward.dtype == torch.float32
    assert output.tokens_per_forward.shape == (2,)
    assert set(stats.forwards) == {"prefill", "denoise", "verify", "commit"}
    for count in (*stats.forwards.values(), stats.head_forwards, stats.tokens_remasked, stats.query_tokens):
        assert count.dtype == torch.long
        assert count.shape == (2,)
        assert count.device.type == "cpu"
    assert stats.drafts_proposed.shape == stats.drafts_accepted.shape == (2, steps)


def test_plain_tensor_unless_asked(model):
    ids = torch.tensor([draw_prompt(5)])
    sequences = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, pad_token_id=PAD)
    assert isinstance(sequences, torch.Tensor)


def test_logits_are_computed_for_masked_positions_only(small_model, monkeypatch):
    model = small_model()
    projected, project = [], model.project

    def count(hidden):
        projected.append(hidden.shape[:-1].numel())
        return project(hidden)

    monkeypatch.setattr(model, "project", count)
    run(model, [draw_prompt(6)], max_new_tokens=6)
    assert projected == [2, 1, 4, 3, 2, 1]
    projected.clear()
    run(model, [draw_prompt(6)], max_new_tokens=2, mrp_mode="speculative", mrp_drafter="head")
    # 2 masks; then one draft from 1 mask; then the certain state (1 mask) with the full one (none).
    assert projected == [2, 1, 1]
