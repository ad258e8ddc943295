"""What workers send to a collector, and the books of what it has answered for.

Between the two stands the network of the fault harness, so that connections are cut, answers are
lost and requests come again, as between any two machines.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.faults.books import Books, Verdict
from tests.faults.gateway import Addresses, Gateway
from tests.faults.keeper import WorkerKeeper, wait_for
from tests.faults.plan import WorkerPlan
from tests.faults.senders import Sender, SenderPlan
from tests.lab.site import History
from tests.process.commands import clean_environment

EXPERIMENT = "lab"

_MORE_TIMEOUT_S = 180.0
_DELIVER_TIMEOUT_S = 180.0
_LOOK_AT_RUN_S = 0.2

# Of the stock SDK's kind, and of otel_rl's; the fourth is a real worker of otel_rl.
_SENDERS = [
    SenderPlan(1, "trainer", 0, "", True, False, 0.0, 0.05, 1),
    SenderPlan(2, "trainer", 1, "", True, True, 0.0, 0.05, 2),
    SenderPlan(3, "generator", 0, "", False, True, 0.0, 0.05, 3),
]
_WORKER = WorkerPlan(4, "reward", 0, "")


class Traffic:
    """Four workers of one run that send to a collector inside its context.

    Args:
        url: Of the collector.
        trial: Of the run.
        directory: Of their logs.
        seed: Of what the network does to them.
    """

    def __init__(self, url: str, trial: str, directory: Path, seed: int = 0) -> None:
        self._trial = trial
        self._directory = directory
        self._books = Books()
        self._over = threading.Event()
        self._stack = ExitStack()
        addresses = Addresses(urlsplit(url).netloc, grpc="")  # nobody here speaks gRPC
        self._network = Gateway(lambda: addresses, self._books, seed)
        self._senders: Sequence[Sender] = []
        self._worker: WorkerKeeper | None = None

    def __enter__(self) -> Self:
        self._stack.enter_context(self._network)
        self._stack.callback(self._over.set)
        self._senders = [
            Sender(
                plan,
                self._network.url,
                (EXPERIMENT, self._trial),
                self._directory / f"acknowledged-{plan.number}.jsonl",
                self._over.is_set,
            )
            for plan in _SENDERS
        ]
        environment = clean_environment(self._directory, OTEL_RL_TRIAL=self._trial)
        log = self._directory / "worker.log"
        self._worker = self._stack.enter_context(
            WorkerKeeper(_WORKER, self._network.url, EXPERIMENT, environment, log)
        )
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_for_more(self, n: int) -> None:
        """Until the collector has answered for ``n`` further measurements."""
        enough = self._books.acknowledged() + n
        self.wait_until(lambda: self._books.acknowledged() >= enough)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until something holds, while measurements flow."""
        assert wait_for(condition, _MORE_TIMEOUT_S), self._network.happened

    def refused(self) -> int:
        """How often the collector told a sender to come again."""
        return self._network.happened["answered 503"]

    def finish(self, history: Callable[[str, str], History]) -> Verdict:
        """Let all of them end in order, wait for the run, and compare it with the books.

        Args:
            history: The rows of a run so far, by experiment and trial.
        """
        self._network.calm()
        for sender in self._senders:
            sender.finish()
        for sender in self._senders:
            sender.join(_DELIVER_TIMEOUT_S)
            assert not sender.is_alive(), "a sender was not answered for"
        assert self._worker is not None
        status, said = self._worker.finish(_DELIVER_TIMEOUT_S)
        assert (status, said.split()[-1:]) == (0, ["delivered"]), said
        assert wait_for(self._network.is_drained, _DELIVER_TIMEOUT_S)
        verdict = self._books.judge(history(EXPERIMENT, self._trial))

        def is_sound() -> bool:
            nonlocal verdict
            verdict = self._books.judge(history(EXPERIMENT, self._trial))
            return verdict.is_sound

        wait_for(is_sound, _DELIVER_TIMEOUT_S, look_s=_LOOK_AT_RUN_S)
        return verdict
