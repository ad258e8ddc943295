"""The file of JSON lines: its format, and what it looks like after a crash."""

import json
import math
from pathlib import Path

import pytest

from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.jsonl import JsonLinesTracker
from otel_rl.errors import TrackerRejected
from otel_rl.records import ExperimentKey, Row

WHOLE = b'{"number":0,"x":1}\n{"number":1,"x":2}\n'


def info(directory: Path) -> RunInfo:
    return RunInfo(ExperimentKey("grpo"), "abcdefgh", directory)


def test_a_line_is_json_that_any_reader_takes(tmp_path: Path) -> None:
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    values = {"a": 0.25, "b": math.nan, "c": math.inf, "d": -math.inf}
    tracker.write([Row(number=0, step=3, time_ns=17 * 10**17 + 1, values=values)])
    tracker.close(exit_code=0)
    assert json.loads((tmp_path / "abcdefgh.jsonl").read_text()) == {
        "number": 0,
        "step": 3,
        "time_ns": 17 * 10**17 + 1,
        "policy_version": None,
        "values": {"a": 0.25, "b": "NaN", "c": "Infinity", "d": "-Infinity"},
    }


@pytest.mark.parametrize(
    ("damage", "content", "survivors"),
    [
        ("none", WHOLE, 2),
        ("empty file", b"", 0),
        ("torn line", WHOLE + b'{"number":2,"x"', 2),
        ("torn line that is whole but for its end", WHOLE + b'{"number":2,"x":3}', 2),
        ("only a torn line", b'{"number":0', 0),
        ("zeros after a power cut", WHOLE + b"\0" * 5000, 2),
        ("zeros with a line end", WHOLE + b"\0" * 5000 + b"\n", 2),
        ("a line that is no row", WHOLE + b"[1]\nnull\n{}\n", 2),
        ("garbage", WHOLE + b"\xff\xfe\n", 2),
    ],
)
def test_damage_at_the_end_is_cut_off(
    tmp_path: Path, damage: str, content: bytes, survivors: int
) -> None:
    path = tmp_path / "abcdefgh.jsonl"
    path.write_bytes(content)
    tracker = JsonLinesTracker()
    assert tracker.open(info(tmp_path)) == survivors
    tracker.close(exit_code=0)
    assert path.read_bytes() == WHOLE[: len(WHOLE) // 2 * survivors]


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    tracker.write([Row(number=0, step=0, time_ns=1, values={"a": 1.0})])
    assert tracker.close(exit_code=0) == tracker.close(exit_code=1) == 1


def test_a_directory_that_cannot_be_written_to_is_rejected_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(TrackerRejected, match="cannot be opened") as caught:
        JsonLinesTracker().open(info(tmp_path / "absent"))
    assert caught.value.hint
