"""Records of training data as files hold them."""

import json
from pathlib import Path

import pytest

from mrp_hf.cli.data import read_records

RECORD = {"prompt": "a\u2028b", "answer": "c"}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_end_at_line_breaks_only_and_blank_ones_are_skipped(tmp_path: Path, ending: str) -> None:
    data = tmp_path / "data.jsonl"
    line = json.dumps(RECORD, ensure_ascii=False)
    data.write_bytes(ending.join([line, "  ", "", line, ""]).encode())
    records = list(read_records(data))
    assert [where.rsplit(" ", 1)[1] for where, _ in records] == ["1", "4"]
    assert all(messages[0]["content"] == RECORD["prompt"] for _, messages in records)
