"""The wandb library as a writer sees it, over simulated histories and a simulated clock.

It does what wandb 0.31 was measured to do where that matters for a row: ``starting_step`` comes
from one answer of the server and the place of the first line from another; a lower step is dropped;
what ``log`` has taken is in memory until the uploader has sent it.
"""

import json
import random
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from otel_rl.bridge.delivery.wandb import server, tracker
from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.server import JOURNAL_KEY, RemoteRun
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from tests.simulation.clock import Clock
from tests.simulation.history import Away, History, Refused, Uploader

_FINISH_TIMEOUT_S = 10.0


class _Error(Exception):
    """``wandb.Error``."""


class _CommError(_Error):
    pass


class _AuthenticationError(_CommError):
    pass


class _UsageError(_Error):
    pass


class Library:
    """wandb in all writers, each of which has one run.

    Args:
        histories: What the server has, by run id.
        clock: Passes while somebody waits for an answer.
        chance: Decides what is lost.

    Attributes:
        opening: The writer that opens its run next.
        asleep: The writers on machines that sleep.
        sessions: How many runs were opened.
        most_waiting: The most lines that ever were in the memory of one writer.
    """

    def __init__(
        self, histories: Mapping[str, History], clock: Clock, chance: random.Random
    ) -> None:
        self._histories = histories
        self._clock = clock
        self._chance = chance
        # By the writer that has opened it: two bridges may have one of a run each.
        self._uploaders: dict[object, Uploader] = {}
        self.opening: object = None
        self.asleep: set[object] = set()
        self.sessions = 0
        self.most_waiting = 0

    def init(self, run_id: str, config: Mapping[str, str]) -> "_Run":
        """Open the run."""
        history = self._histories[run_id]
        try:
            start = history.count()
            history.config = history.config or config
            self._clock.sleep(self._chance.choice([0.0, 0.2, 1.0]))
            uploader = Uploader(history, history.count(), self._chance)
        except Away as exc:
            raise _CommError("no answer within the time given") from exc
        except Refused as exc:
            raise _AuthenticationError("401") from exc
        self.sessions += 1
        self._uploaders[self.opening] = uploader
        return _Run(start, uploader, self._clock)

    def ask(self, run_id: str) -> RemoteRun:
        """What the server answers to a question beside the library."""
        history = self._histories[run_id]
        try:
            return RemoteRun(history.count(), history.config.get(JOURNAL_KEY, ""))
        except Away as exc:
            raise TrackerUnavailable("The simulated server does not answer.") from exc
        except Refused as exc:
            raise TrackerRejected("The simulated server refuses.") from exc

    def upload(self) -> None:
        """Time has passed: the uploaders may have used it."""
        for writer, uploader in self._uploaders.items():
            self.most_waiting = max(self.most_waiting, len(uploader.waiting))
            if writer not in self.asleep and self._chance.random() < 0.7:
                uploader.upload()

    def kill(self, writer: object) -> None:
        """End the process of a writer."""
        uploader = self._uploaders.pop(writer, None)
        if uploader is not None:
            uploader.kill()


class _Run:
    """``wandb.Run``."""

    url = "https://wandb.invalid/run"
    settings = SimpleNamespace(sync_dir="nowhere")
    notes = ""
    tags = ()

    def __init__(self, start: int, uploader: Uploader, clock: Clock) -> None:
        self.starting_step = start
        self.summary: dict[str, object] = {}
        self._next_step = start
        self._uploader = uploader
        self._clock = clock

    def define_metric(self, *_: object, **__: object) -> None:
        """Charts are not simulated."""

    def log(self, data: Mapping[str, float], *, step: int, commit: bool) -> None:
        assert commit
        if step < self._next_step:
            return
        self._next_step = step + 1
        self._uploader.add(json.dumps({**data, "_step": step}))

    def finish(self, *, exit_code: int) -> None:
        """Wait until the uploader has sent everything, for a while."""
        end_s = self._clock() + _FINISH_TIMEOUT_S
        while self._uploader.waiting and not self._uploader.has_stopped:
            if self._clock() > end_s:
                raise TimeoutError("finish has timed out")
            self._clock.sleep(0.5)


class _Settings(dict[str, object]):
    """``wandb.Settings``."""

    model_fields = ()


@contextmanager
def installed(library: Library, clock: Clock) -> Iterator[None]:
    """Have the real ``WandbTracker`` use a simulated library, server and clock."""
    wandb, errors = types.ModuleType("wandb"), types.ModuleType("wandb.errors")
    vars(errors).update(
        AuthenticationError=_AuthenticationError, CommError=_CommError, UsageError=_UsageError
    )
    vars(wandb).update(
        __version__="0.31.0",
        Error=_Error,
        Settings=_Settings,
        errors=errors,
        init=lambda **options: library.init(options["id"], options["config"]),
        teardown=lambda exit_code: None,
    )
    account = Account(online=True, base_url="https://wandb.invalid", project="p", entity="e")
    with tempfile.TemporaryDirectory() as files, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wandb", wandb)
        patch.setitem(sys.modules, "wandb.errors", errors)
        patch.setattr(server, "ask", lambda _, run_id, **__: library.ask(run_id))
        patch.setattr(server, "ask_for_summary", lambda *_, **__: {})
        patch.setattr(tracker, "writer_file", lambda run, name: Path(files, f"{run.run_id}.{name}"))
        patch.setattr(tracker, "find_account", lambda *_, **__: account)
        patch.setattr(server, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
        yield
