"""The bridge that the workers of a run start for themselves."""

import argparse
from pathlib import Path

import pytest

from otel_rl.cli import inbox_bridge
from otel_rl.inbox import make_inbox


def test_a_worker_that_begins_while_the_run_is_finished_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_inbox(tmp_path)
    late = inbox / "1-a.000001.otlp"
    served: list[bool] = []

    def serve(_: argparse.Namespace, __: Path) -> int:
        if served:
            late.unlink()
        else:
            late.touch()  # its worker has seen that a bridge is there, and starts none
        served.append(True)
        return 0

    monkeypatch.setattr(inbox_bridge, "_serve", serve)
    assert inbox_bridge.serve_inbox(argparse.Namespace(inbox=inbox)) == 0
    assert len(served) == 2


def test_a_bridge_that_cannot_write_does_not_try_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = make_inbox(tmp_path)
    (inbox / "1-a.000001.otlp").touch()
    monkeypatch.setattr(inbox_bridge, "_serve", lambda *_: 1)
    assert inbox_bridge.serve_inbox(argparse.Namespace(inbox=inbox)) == 1
