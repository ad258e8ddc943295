"""Files of a SQLite journal: its owner's alone, and noticed when they are gone."""

import fcntl
import stat
import time
from pathlib import Path

import pytest

from otel_rl.bridge.journal.sqlite import (
    LOCK_FILE,
    LockFile,
    OpenFiles,
    is_in_use,
    make_directory,
    open_database,
)
from otel_rl.errors import JournalError, JournalGone, JournalLocked

MAX_BYTES = 1 << 20


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_journal_is_its_owners_alone_whoever_made_the_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "journal.db"
    path.touch(mode=0o644)
    connection, _ = open_database(path, MAX_BYTES)
    connection.close()
    assert mode(path) == 0o600


def test_a_new_directory_is_its_owners_alone(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


def test_an_opened_journal_keeps_its_identity(tmp_path: Path) -> None:
    identities = set()
    for _ in range(2):
        connection, identity = open_database(tmp_path / "journal.db", MAX_BYTES)
        connection.close()
        identities.add(identity)
    assert len(identities) == 1


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(JournalError, match="Cannot open the journal"):
        open_database(path, MAX_BYTES)


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    first = LockFile(tmp_path / "lock")
    with pytest.raises(JournalLocked, match="in use by process"):
        LockFile(tmp_path / "lock")
    first.close()
    LockFile(tmp_path / "lock").close()


def test_a_file_that_is_replaced_is_gone_until_it_is_put_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "journal.db", tmp_path / "aside"
    path.touch()
    files = OpenFiles([path])
    files.check()
    path.rename(aside)
    path.touch()
    with pytest.raises(JournalGone, match="removed or replaced"):
        files.check()
    aside.rename(path)
    files.check()


def test_a_bridge_starts_although_a_reader_is_looking_whether_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LockFile(tmp_path / LOCK_FILE).close()
    reader = (tmp_path / LOCK_FILE).open()
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: reader.close())
    LockFile(tmp_path / LOCK_FILE).close()
    assert reader.closed


def test_a_journal_is_in_use_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    held = LockFile(tmp_path / LOCK_FILE)
    assert is_in_use(tmp_path)
    held.close()
    assert not is_in_use(tmp_path)


def test_removed_batches_are_not_written_once_more(tmp_path: Path) -> None:
    connection, _ = open_database(tmp_path / "journal.db", MAX_BYTES)
    assert connection.execute("PRAGMA secure_delete").fetchone() == (0,)
    connection.close()
