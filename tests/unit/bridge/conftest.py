"""Tests that ask for a ``store`` run over each kind of journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal.sqlite import SqliteJournal
from tests.stores import Store


@pytest.fixture(params=["sqlite"])
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(lambda max_bytes: SqliteJournal(tmp_path / "journal", max_bytes=max_bytes))
    yield made
    made.close()
