"""A W&B server, and the environment of a user without a login."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wandb_server import WandbServer, without_a_login


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_login(monkeypatch, tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
