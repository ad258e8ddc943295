"""What workers have left in files is kept once, whatever fails in between."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from otel_rl.bridge.counters import Counter, Counters, Outcome
from otel_rl.bridge.receive.inbox_reader import InboxReader
from otel_rl.errors import JournalFull
from otel_rl.inbox import HEAD, LOCK, make_inbox, record
from otel_rl.records import Batch, Signal
from tests.support.otlp_requests import Journal, gauge, intake, metrics_request, point


class Kept:
    """A journal of batches and positions.

    Attributes:
        batches: That were kept.
        positions: As of the last time.
        is_full: Whether the next calls fail.
    """

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.positions: dict[str, int] = {}
        self.is_full = False

    def __call__(
        self, batches: Sequence[Batch], positions: Mapping[str, int], removed: Sequence[str]
    ) -> None:
        if self.is_full:
            raise JournalFull("No room.")
        self.batches += batches
        self.positions |= positions
        for name in removed:
            del self.positions[name]


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return make_inbox(tmp_path)


def body(value: float) -> bytes:
    return metrics_request(gauge(point(value))).SerializeToString()


def leave(inbox: Path, worker: str, *values: float, number: int = 1, rest: bytes = b"") -> Path:
    """Leave requests of a worker that has gone."""
    path = inbox / f"{worker}.{number:06}.otlp"
    requests = b"".join(record(Signal.METRICS, body(value)) for value in values)
    path.write_bytes(HEAD + requests + rest)
    return path


def reader(inbox: Path, kept: Kept, counters: Counters | None = None) -> InboxReader:
    door = intake(Journal(), counters or Counters())
    made = InboxReader([inbox], door, kept, lambda: kept.positions)
    made._positions.update(kept.positions)  # as ``start`` does, without its thread
    return made


def read_all(one: InboxReader) -> None:
    while one.look():
        pass


def test_everything_is_kept_in_order_and_its_files_are_removed(inbox: Path) -> None:
    leave(inbox, "1-a", 1, 2)
    leave(inbox, "1-a", 3, number=2)
    leave(inbox, "2-b", 4)
    kept = Kept()
    one = reader(inbox, kept)
    read_all(one)
    assert len(kept.batches) == 4
    assert one.is_empty
    assert not [*inbox.iterdir()]


def test_what_finds_no_room_is_kept_once_when_there_is_some(inbox: Path) -> None:
    path = leave(inbox, "1-a", 1, 2)
    kept = Kept()
    one = reader(inbox, kept)
    kept.is_full = True
    for _ in range(3):
        with pytest.raises(JournalFull):
            one.look()
    assert path.exists()
    kept.is_full = False
    read_all(one)
    assert len(kept.batches) == 2
    assert not path.exists()


def test_a_bridge_that_was_killed_before_it_removed_a_file_does_not_read_it_again(
    inbox: Path, tmp_path: Path
) -> None:
    path = leave(inbox, "1-a", 1, 2)
    copy = shutil.copy(path, tmp_path / "copy")
    kept = Kept()
    reader(inbox, kept).look()  # reads and keeps; the removal is the next look's
    shutil.copy(copy, path)
    read_all(reader(inbox, kept))
    assert len(kept.batches) == 2
    assert not path.exists()


def test_a_file_that_cannot_be_removed_is_read_once(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(inbox, "1-a", 1, 2)

    def fails(_: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError

    kept = Kept()
    one = reader(inbox, kept)
    one.look()
    leave(inbox, "2-b", 3)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fails)
        for _ in range(3):
            with suppress(PermissionError):
                read_all(one)
    read_all(one)
    assert len(kept.batches) == 3


def test_a_torn_last_request_of_a_killed_worker_is_none(inbox: Path) -> None:
    path = leave(inbox, "1-a", 1, rest=record(Signal.METRICS, body(2))[:-1])
    (inbox / f"1-a{LOCK}").touch()
    kept, counters = Kept(), Counters()
    one = reader(inbox, kept, counters)
    read_all(one)
    assert len(kept.batches) == 1
    assert one.was_killed
    assert not path.exists()
    assert not counters.value(Counter.REQUESTS, reason=Outcome.MALFORMED)


def test_damaged_bytes_are_counted_and_what_other_workers_left_is_read(inbox: Path) -> None:
    leave(inbox, "1-a", 1, rest=b"\xff" * 40)
    leave(inbox, "1-a", 2, rest=record(Signal.METRICS, b"")[:5] + b"\1\2\3\4", number=2)
    leave(inbox, "2-b", 3)
    kept, counters = Kept(), Counters()
    read_all(reader(inbox, kept, counters))
    assert len(kept.batches) == 3
    assert counters.value(Counter.REQUESTS, reason=Outcome.MALFORMED) == 1


def test_a_request_that_is_no_otlp_is_refused_and_those_behind_it_are_kept(inbox: Path) -> None:
    path = leave(inbox, "1-a", 1)
    path.write_bytes(path.read_bytes() + record(Signal.METRICS, b"\xff\xff"))
    path.write_bytes(path.read_bytes() + record(Signal.METRICS, body(2)))
    kept, counters = Kept(), Counters()
    read_all(reader(inbox, kept, counters))
    assert len(kept.batches) == 2
    assert counters.value(Counter.REQUESTS, reason=Outcome.MALFORMED) == 1


def test_no_worker_gets_far_ahead_of_another_one(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_rl.bridge.receive.inbox_reader._READ_BYTES", 1)
    leave(inbox, "1-a", 1, 2, 3)
    leave(inbox, "2-b", 4, 5, 6)
    kept = Kept()
    one = reader(inbox, kept)
    for turn in range(1, 4):
        one.look()
        assert len(kept.batches) == 2 * turn
