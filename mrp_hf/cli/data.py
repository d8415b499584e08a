"""Training data of `mrp-hf train`: JSON records to conversations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrp_hf.training.conversations import Messages


def read_records(path: Path) -> Iterator[tuple[str, Messages]]:
    """The conversations of a .json file (a list) or a .jsonl file (one a line), and where each stands, for errors.

    A record has `messages`, the last of which is the assistant's, or `prompt` and `answer`.

    Raises:
        ValueError: for a file or a record of another form.
    """
    if not path.is_file():
        raise ValueError(f"data file {str(path)!r} does not exist: give a .json or .jsonl file, or 'demo'")
    if path.suffix == ".jsonl":
        # Not `splitlines`, which also splits at separators that may stand inside a JSON string.
        lines = [(f"{path}, line {number}", line) for number, line in enumerate(path.read_text().split("\n"), start=1)]
        records = [(where, _parse(line, where)) for where, line in lines if line.strip()]
    elif path.suffix == ".json":
        content = _parse(path.read_text(), str(path))
        if not isinstance(content, list):
            raise ValueError(
                f"{path} holds no list: write a JSON list of records, or one record a line in a .jsonl file"
            )
        records = [(f"{path}, record {number}", record) for number, record in enumerate(content, start=1)]
    else:
        raise ValueError(f"data file {str(path)!r} is neither .json nor .jsonl")
    if not records:
        raise ValueError(f"{path} holds no records")
    for where, record in records:
        yield where, _messages(record, where)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


def _messages(record: Any, where: str) -> Messages:
    if isinstance(record, dict) and isinstance(record.get("prompt"), str) and isinstance(record.get("answer"), str):
        return [{"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": record["answer"]}]
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or len(messages) < 2:
        raise ValueError(f"{where}: a record needs `prompt` and `answer`, or `messages` of at least two turns")
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(f"{where}: every message needs `role` and `content` as texts")
    if messages[-1]["role"] != "assistant":
        raise ValueError(f"{where}: the last message must be the assistant's, it is {messages[-1]['role']!r}")
    return messages
