"""Tests that ask for a ``store`` run over each kind of journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal.places import open_journal
from tests.support.postgres import PostgresServer
from tests.support.stores import Store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = None
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_url()
    made = Store(lambda max_bytes: open_journal(tmp_path / "journal", url, max_bytes=max_bytes))
    yield made
    made.close()
