"""Streamers hear of every kept token once, in order, and of drafts in between."""

import itertools

import pytest
import torch
from transformers import TextDiffusionStreamer, TextStreamer

from .helpers import MASK, PAD, RULES, WAYS, answers, draw_prompt, run


class Recorder:
    def __init__(self):
        self.events = []

    def put(self, value):
        self.events.append(("put", value.tolist()))

    def end(self):
        self.events.append(("end", None))


class DraftRecorder(Recorder):
    def put_draft(self, value):
        self.events.append(("draft", value.tolist()))


class Tokenizer:
    """Token 5 is the word 5."""

    def decode(self, ids, **_):
        return "".join(f"{int(token)} " for token in ids)


@pytest.fixture(scope="module")
def model(small_model):
    return small_model()


def stream(model, prompt, recorder, **fields):
    output = run(model, [prompt], streamer=recorder, **fields)
    return answers(output)[0], recorder.events


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompt_length", [4, 6])
def test_every_token_once(model, way, prompt_length):
    prompt = draw_prompt(prompt_length)
    free = answers(run(model, [prompt], max_new_tokens=11, **WAYS[way]))[0]
    for eos in (None, free[5]):
        fields = {"max_new_tokens": 11, "eos_token_id": eos, **WAYS[way]}
        answer, events = stream(model, prompt, Recorder(), **fields)
        assert answer == answers(run(model, [prompt], **fields))[0]
        assert events[0] == ("put", [prompt])
        assert events[-1] == ("end", None)
        assert [kind for kind, _ in events[1:-1]] == ["put"] * (len(events) - 2)
        assert [token for _, tokens in events[1:-1] for token in tokens] == answer
        # One `put` a block, at the block's end.
        bounds = [len(prompt)]
        for _, tokens in events[1:-1]:
            bounds.append(bounds[-1] + len(tokens))
        assert all(bound % 4 == 0 for bound in bounds[1:-1])
        assert all(after - before <= 4 for before, after in itertools.pairwise(bounds))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", WAYS)
def test_drafts_show_the_current_block(model, way, rule):
    prompt = draw_prompt(6)
    fields = {"max_new_tokens": 11, "remasking_strategy": rule, "confidence_threshold": 0.3, **WAYS[way]}
    answer, events = stream(model, prompt, DraftRecorder(), **fields)
    final, sent, widths = prompt + answer, 0, []
    for kind, tokens in events:
        if kind == "put":
            sent += len(tokens[0]) if sent == 0 else len(tokens)
        elif kind == "draft":
            end = min((sent // 4 + 1) * 4, len(final))
            assert len(tokens) == end - sent
            shown = [(token, final[sent + column]) for column, token in enumerate(tokens) if token != MASK]
            if way != "remask":  # elsewhere what is revealed stays
                assert all(token == kept for token, kept in shown)
            widths.append(len(tokens))
    assert sent == len(final)
    assert widths
    assert events[-1] == ("end", None)


def test_drafts_have_fewer_masks_every_round(model):
    _, events = stream(model, draw_prompt(8), DraftRecorder(), max_new_tokens=4)
    masks = [tokens.count(MASK) for kind, tokens in events if kind == "draft"]
    assert masks == [3, 2, 1]


def test_prompt_of_a_padded_row_is_sent_without_padding(model):
    prompt, recorder = draw_prompt(3), Recorder()
    ids, mask = torch.tensor([[PAD, PAD, *prompt]]), torch.tensor([[0, 0, 1, 1, 1]])
    model.generate(ids, attention_mask=mask, max_new_tokens=2, pad_token_id=PAD, streamer=recorder)
    assert recorder.events[0] == ("put", [prompt])


@pytest.mark.parametrize("streamer_class", [TextStreamer, TextDiffusionStreamer])
@pytest.mark.parametrize("skip_prompt", [True, False])
def test_streamers_of_transformers(model, capsys, streamer_class, skip_prompt):
    streamer = streamer_class(Tokenizer(), skip_prompt=skip_prompt)
    prompt = draw_prompt(6)
    output = run(model, [prompt], max_new_tokens=9, streamer=streamer)
    printed = capsys.readouterr().out
    if streamer_class is TextDiffusionStreamer:
        assert "\033[33m" in printed  # drafts, in yellow, between saving and restoring the cursor
        assert f"{MASK} " in printed
        head, *others = printed.split("\0337")
        printed = head + "".join(part.split("\0338\033[J")[1] for part in others)
    text = (([] if skip_prompt else prompt) + answers(output)[0],)
    assert printed.split() == [str(token) for token in text[0]]
