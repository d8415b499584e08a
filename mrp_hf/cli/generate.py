"""`mrp-hf generate`: complete a prompt."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from mrp_hf.cli.options import (
    AttentionPattern,
    BlockLength,
    LogitShift,
    MaskTokenId,
    TrustRemoteCode,
    backbone_settings,
)


class Mode(StrEnum):
    plain = "plain"
    direct = "direct"
    speculative = "speculative"
    remask = "remask"


class Rule(StrEnum):
    low_confidence_static = "low_confidence_static"
    low_confidence_dynamic = "low_confidence_dynamic"
    sequential = "sequential"
    entropy_bounded = "entropy_bounded"
    random = "random"


class Drafter(StrEnum):
    head = "head"
    backbone = "backbone"


def generate(
    checkpoint: Annotated[
        str, typer.Argument(help="Folder or Hub name of an MRP checkpoint or a backbone; 'demo': the shipped one.")
    ],
    prompt: Annotated[str | None, typer.Argument(help="The prompt; read from standard input if left out.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="How to decode; by default as the checkpoint says.")] = None,
    rule: Annotated[Rule | None, typer.Option(help="Reveal rule; by default the mode's own.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Confidence above which the dynamic rule reveals, and below which remask hides."),
    ] = None,
    lookahead: Annotated[int | None, typer.Option("--lookahead", "-K", help="Lookahead steps per forward.")] = None,
    drafter: Annotated[Drafter | None, typer.Option(help="What drafts in speculative mode.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of taking the likeliest token.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of this mass.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling noise.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text block by block as it is decoded.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print forwards and tokens per forward at the end.")] = False,
    device: Annotated[str, typer.Option(help="Where to decode: cpu, cuda, ...")] = "cpu",
    block_length: BlockLength = None,
    mask_token_id: MaskTokenId = None,
    attention_pattern: AttentionPattern = None,
    logit_shift: LogitShift = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Complete a prompt with an MRP checkpoint, or with a diffusion backbone as it is."""
    from transformers import TextStreamer

    from mrp_hf.cli.loading import load_any

    if prompt is None:
        if sys.stdin.isatty():
            raise typer.BadParameter("give a prompt, or text on standard input", param_hint="'[PROMPT]'")
        prompt = sys.stdin.read().strip()
    # Only what was asked for: everything else is the checkpoint's generation_config.json and the defaults.
    fields = {
        "remasking_strategy": rule and rule.value,
        "confidence_threshold": threshold,
        "mrp_num_lookahead_steps": lookahead,
        "mrp_drafter": drafter and drafter.value,
        "max_new_tokens": max_new_tokens,
        "do_sample": sample or None,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "block_length": block_length,
    }
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if mode is not None:
        given["mrp_mode"] = None if mode is Mode.plain else mode.value
    settings = backbone_settings(mask_token_id, block_length, attention_pattern, logit_shift, trust_remote_code)
    model, tokenizer = load_any(checkpoint, **settings)
    model.to(device)  # type: ignore[arg-type]
    if raw or tokenizer.chat_template is None:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    else:
        chat = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(device)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True) if stream else None
    output: Any = model.generate(**inputs, streamer=streamer, return_dict_in_generate=True, **given)
    if streamer is None:
        answer = output.sequences[0, inputs["input_ids"].shape[1] :]
        typer.echo(str(tokenizer.decode(answer, skip_special_tokens=True)).strip())
    if stats:
        forwards, head = output.mrp_stats.backbone_forwards.item(), output.mrp_stats.head_forwards.item()
        rate = output.tokens_per_forward.item()
        typer.echo(f"{forwards} forwards, {head} head forwards, {rate:.2f} tokens per forward", err=True)
