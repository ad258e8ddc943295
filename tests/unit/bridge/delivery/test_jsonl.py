"""The file of JSON lines: its format, and what it looks like after a crash."""

import errno
import json
import math
import os
import resource
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.jsonl import JsonLinesTracker
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import CONSOLE, CONSOLE_COLUMNS, ExperimentKey, Row, Table, Value

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
        "attempt": 1,
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


def row(number: int) -> Row:
    return Row(number=number, step=number, time_ns=1, values={"x": float(number)})


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("lost", [b"", bytes(50), bytes(50) + b"\n", b"[1]\n"])
def test_a_gap_that_a_power_cut_has_left_is_filled(tmp_path: Path, lost: bytes) -> None:
    path = tmp_path / "abcdefgh.jsonl"
    lines = [b'{"number":%d}\n' % number for number in range(6)]
    path.write_bytes(b"".join(lines[:2]) + lost + b"".join(lines[4:]))
    content = path.read_bytes()
    tracker = JsonLinesTracker()
    assert tracker.open(info(tmp_path)) == 2
    assert path.read_bytes() == content  # until the rows are here that have to be written again
    tracker.write([row(number) for number in range(2, 6)])
    assert tracker.close(exit_code=0) == 6
    assert numbers(path) == list(range(6))


def test_a_gap_within_a_line_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "abcdefgh.jsonl"
    long = b'{"number":1,"x":"' + b"x" * 2000 + b'"}\n'
    path.write_bytes(b'{"number":0}\n' + long[:700] + bytes(512) + long[1212:] + b'{"number":2}\n')
    assert JsonLinesTracker().open(info(tmp_path)) == 1


def test_a_file_that_was_removed_while_it_was_written_confirms_nothing(tmp_path: Path) -> None:
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    tracker.write([row(0)])
    assert tracker.flush(timeout_s=0) == 1
    path = tmp_path / "abcdefgh.jsonl"
    path.unlink()
    tracker.write([row(1)])
    with pytest.raises(TrackerUnavailable, match="No such file"):
        tracker.flush(timeout_s=0)
    path.write_bytes(b"")
    with pytest.raises(TrackerUnavailable, match="was replaced"):
        tracker.flush(timeout_s=0)


@pytest.mark.parametrize("damage", ["cut off", "changed"])
def test_rows_that_are_not_in_the_file_as_they_were_written_are_not_confirmed(
    tmp_path: Path, damage: str
) -> None:
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    tracker.write([row(0), row(1)])
    path = tmp_path / "abcdefgh.jsonl"
    with path.open("r+b") as file:
        if damage == "cut off":
            file.truncate(path.stat().st_size - 1)
        else:
            file.write(b"#")
    with pytest.raises(TrackerUnavailable, match="does not have the rows"):
        tracker.flush(timeout_s=0)


def test_a_full_disk_is_said_and_what_it_took_of_a_row_is_no_row(tmp_path: Path) -> None:
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        with pytest.raises(TrackerUnavailable, match="Free space in") as caught:
            tracker.write([row(number) for number in range(50)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert str(tmp_path) in caught.value.hint
    assert (tmp_path / "abcdefgh.jsonl").stat().st_size == 1000
    again = JsonLinesTracker()
    start = again.open(info(tmp_path))
    assert 0 < start < 20
    again.write([row(number) for number in range(start, 50)])
    assert again.close(exit_code=0) == 50
    assert numbers(tmp_path / "abcdefgh.jsonl") == list(range(50))


def test_a_disk_without_room_for_the_first_byte_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrackerUnavailable, match="Free space in"):
        JsonLinesTracker().open(info(tmp_path))


def said(number: int, *texts: str, first: int) -> Row:
    lines: list[list[Value]] = [
        [first + n, 1, "trainer/0", "stdout", text] for n, text in enumerate(texts)
    ]
    return Row(number, 0, 1, tables={CONSOLE: Table([*CONSOLE_COLUMNS], lines)})


def test_the_console_is_a_file_of_its_own_with_each_line_once(tmp_path: Path) -> None:
    rows = [said(0, "a", "b", first=0), said(1, "c", first=2), said(2, "größe", first=3)]
    path = tmp_path / "abcdefgh.console.log"
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    tracker.write(rows[:2])
    tracker.close(exit_code=0)
    # Killed: the row is torn, the line of the next one as well.
    torn = (tmp_path / "abcdefgh.jsonl").read_bytes()[:-3]
    (tmp_path / "abcdefgh.jsonl").write_bytes(torn)
    path.write_bytes(path.read_bytes() + b"[trainer/0] gr")
    again = JsonLinesTracker()
    start = again.open(info(tmp_path))
    again.write(rows[start:])
    again.close(exit_code=0)
    assert start == 1
    assert path.read_text().splitlines() == [
        f"[trainer/0] {text}" for text in ("a", "b", "c", "größe")
    ]
    records = map(json.loads, (tmp_path / "abcdefgh.jsonl").read_text().splitlines())
    assert [(record["number"], "tables" in record) for record in records] == [
        (0, False),
        (1, False),
        (2, False),
    ]


def test_lines_that_a_power_cut_took_from_the_console_keep_their_places(tmp_path: Path) -> None:
    tracker = JsonLinesTracker()
    tracker.open(info(tmp_path))
    tracker.write([said(0, "d", first=2)])
    tracker.close(exit_code=0)
    lines = (tmp_path / "abcdefgh.console.log").read_text().splitlines()
    assert lines == ["[otel_rl: a line is missing here]"] * 2 + ["[trainer/0] d"]
