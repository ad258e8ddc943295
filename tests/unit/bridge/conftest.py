"""Tests that ask for a ``store`` run over each kind of journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rl.bridge.journal.places import open_journal
from tests.support.postgres import PostgresServer
from tests.support.stores import Store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def kind_of_journal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind_of_journal: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = None
    if kind_of_journal == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_url()
    made = Store(lambda max_bytes: open_journal(tmp_path / "journal", url, max_bytes=max_bytes))
    yield made
    made.close()
