"""What the bridge reads back of an offline W&B run, and what it does with copies of it."""

import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest
from wandb.proto import wandb_internal_pb2 as pb

from otel_rl.bridge.delivery.wandb.offline import (
    OfflineCopy,
    RunFile,
    check_room,
    check_writable,
    removed_unless_opened,
)
from otel_rl.errors import TrackerUnavailable
from tests.support.wandb_offline import read_offline_run

RUN = "abcdefgh"
BLOCK = 32 * 1024


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class File:
    """A run's directory, written as wandb-core writes it."""

    def __init__(self, parent: Path, name: str, journal: str = "one") -> None:
        self.directory = parent / f"offline-run-{name}-{RUN}"
        self.directory.mkdir(parents=True)
        self.path = self.directory / f"run-{RUN}.wandb"
        self.path.write_bytes(b":W&B\xe1\xbe\x00")
        self._number = 0
        record = self._record()
        item = record.run.config.update.add()
        item.key, item.value_json = "otel_rl_journal", f'"{journal}"'
        self.add(record)

    def rows(self, start: int, stop: int, *, text: str = "") -> None:
        for number in range(start, stop):
            record = self._record()
            record.history.step.num = number
            item = record.history.item.add()
            item.nested_key.append("x")
            item.value_json = text or str(number)
            self.add(record)

    def end(self, exit_code: int = 0) -> None:
        record = self._record()
        record.exit.exit_code = exit_code
        self.add(record)

    def add(self, record: "pb.Record") -> None:  # type: ignore[name-defined]
        data = record.SerializeToString()
        with self.path.open("ab") as file:
            is_first = True
            while is_first or data:
                left = BLOCK - file.tell() % BLOCK
                if left < 7:
                    file.write(bytes(left))
                    left = BLOCK
                part, data = data[: left - 7], data[left - 7 :]
                kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
                    is_first, not data
                ]
                checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
                file.write(struct.pack("<IHB", checksum, len(part), kind) + part)
                is_first = False

    def _record(self) -> "pb.Record":  # type: ignore[name-defined]
        self._number += 1
        return pb.Record(num=self._number)  # type: ignore[attr-defined]


def read(file: File) -> RunFile:
    return RunFile(file.directory)


def copy_of(file: File, n_rows: int) -> OfflineCopy:
    copy = OfflineCopy(file.directory, RUN, "one")
    copy.next_row = n_rows
    return copy


def test_rows_journal_and_exit_record_are_read_back(tmp_path: Path) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 300, text=f'"{"long" * 200}"')
    file.rows(300, 302, text=f'"{"longer than a block" * 5000}"')
    file.end(3)
    found = read(file)
    assert (found.rows, found.journal, found.exit_code) == (302, "one", 3)
    assert len(read_offline_run(file.path).history) == 302  # by the tests' own reader


@pytest.mark.parametrize("cut", range(1, 60))
def test_what_is_cut_off_does_not_count_until_it_is_whole(tmp_path: Path, cut: int) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 5)
    file.end()
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-cut])
    found = read(file)
    assert (found.rows <= 5, found.exit_code) == (True, None)
    with file.path.open("ab") as tail:
        tail.write(whole[-cut:])
    found = read(file)
    assert [found.rows, found.exit_code] == [5, 0]


def test_a_flipped_bit_ends_what_counts(tmp_path: Path) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 5)
    size = file.path.stat().st_size
    file.rows(5, 10)
    file.end()
    content = bytearray(file.path.read_bytes())
    content[size + 12] ^= 4
    file.path.write_bytes(content)
    assert (read(file).rows, read(file).exit_code) == (5, None)


def test_a_row_that_is_not_there_ends_what_counts(tmp_path: Path) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 5)
    file.rows(6, 10)
    file.end()
    assert read(file).rows == 5


@pytest.mark.parametrize("length", [None, 3])
def test_a_row_counts_when_the_file_of_its_table_is_there(
    tmp_path: Path, length: int | None
) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 3)
    file.rows(3, 4, text='{"_type": "table-file", "path": "media/table/t.json", "size": 4}')
    file.end()
    table = file.directory / "files/media/table/t.json"
    table.parent.mkdir(parents=True)
    if length is not None:
        table.write_bytes(bytes(length))
    found = read(file)
    assert [found.rows, found.exit_code] == [3, None]
    table.write_bytes(bytes(4))
    found = read(file)
    assert [found.rows, found.exit_code] == [4, 0]


def test_a_full_disk_and_a_directory_that_was_removed_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = File(tmp_path, "1")
    copy = copy_of(file, 10)
    assert not copy.is_stuck()
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: Usage(10**6, 10**6, 0))
        assert copy.is_stuck()
    shutil.rmtree(file.directory)
    assert copy.is_stuck()
    with pytest.raises(TrackerUnavailable):
        copy.verify()


def test_a_run_without_its_exit_record_is_not_finished(tmp_path: Path) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 10)
    with pytest.raises(TrackerUnavailable, match="10 of 10 rows and no exit record"):
        copy_of(file, 10).verify()
    file.end()
    copy_of(file, 10).verify()


def test_a_run_that_lacks_a_row_is_not_finished(tmp_path: Path) -> None:
    file = File(tmp_path, "1")
    file.rows(0, 10)
    file.end()
    with pytest.raises(TrackerUnavailable, match=r"has only 10 of 11 rows\.") as caught:
        copy_of(file, 11).verify()
    assert f"Free space in {tmp_path}" in caught.value.hint


def test_only_copies_that_hold_nothing_more_are_removed(tmp_path: Path) -> None:
    less, more, foreign, empty = (
        File(tmp_path, "1"), File(tmp_path, "2"), File(tmp_path, "3", "other"), File(tmp_path, "4")
    )  # fmt: skip
    less.rows(0, 10)
    less.end()
    more.rows(0, 30)
    more.end()
    foreign.rows(0, 5)
    new = File(tmp_path, "5")
    new.rows(0, 20)
    new.end()
    copy = copy_of(new, 20)
    copy.verify()
    copy.remove_others()
    assert [f.path.exists() for f in (less, more, foreign, empty, new)] == [
        False, True, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("older", "journal", "stays"), [(30, "one", False), (10, "one", True), (30, "other", True)]
)
def test_a_short_copy_goes_if_another_one_holds_as_much(
    tmp_path: Path, older: int, journal: str, stays: bool
) -> None:
    other = File(tmp_path, "1", journal)
    other.rows(0, older)
    short = File(tmp_path, "2")
    short.rows(0, 20)
    copy = copy_of(short, 50)
    with pytest.raises(TrackerUnavailable):
        copy.verify()
    copy.remove_if_needless()
    assert other.path.exists()
    assert short.path.exists() is stays


def test_a_copy_without_a_row_goes_though_it_is_the_only_one(tmp_path: Path) -> None:
    """A disk that is full from the beginning leaves no older one."""
    file = File(tmp_path, "1")
    copy = copy_of(file, 3)
    with pytest.raises(TrackerUnavailable):
        copy.verify()

    copy.remove_if_needless()

    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_could_not_be_opened_goes_and_older_ones_stay(tmp_path: Path) -> None:
    older = File(tmp_path, "1")

    def begin() -> None:
        with removed_unless_opened(tmp_path, RUN):
            File(tmp_path, "2")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        begin()

    assert list(tmp_path.iterdir()) == [older.directory]


def test_a_copy_that_cannot_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    File(tmp_path, "1").rows(0, 100, text=f'"{"x" * 1000}"')
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**6, 10**6 - 10_000, 10_000))
    with pytest.raises(TrackerUnavailable, match="no room") as caught:
        check_room(tmp_path, RUN)
    assert "Free space" in caught.value.hint


def test_a_copy_that_cannot_be_read_stays_and_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, new = File(tmp_path, "1"), File(tmp_path, "2")
    older.rows(0, 5)
    new.rows(0, 10)
    new.end()
    copy = copy_of(new, 10)
    copy.verify()
    is_broken = older.path.__eq__
    opened = Path.open

    def broken(path: Path, mode: str = "r") -> object:
        if is_broken(path):
            raise OSError(5, "Input/output error")
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", broken)
    copy.remove_others()
    check_room(tmp_path, RUN)
    assert older.path.exists()


def test_room_for_the_first_copy_is_not_asked_for(tmp_path: Path) -> None:
    check_room(tmp_path / "absent", RUN)


def test_a_directory_that_wandb_would_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path)
    with pytest.raises(TrackerUnavailable, match="cannot write to"):
        check_writable(tmp_path / "unmounted")
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    with pytest.raises(TrackerUnavailable, match="cannot write to"):
        check_writable(tmp_path)
