"""Runs several scenarios at a time, each with a W&B server of its own."""

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from tests.faults.outcome import Outcome
from tests.faults.scenario import STOP_TIMEOUT_S, run_scenario
from tests.layers.bridges import BridgeWithout, load
from tests.support.wandb_server import WandbServer


class Crew:
    """Any thread may call ``run``.

    Args:
        scratch: For the files of the scenarios.
        size: Scenarios at a time.
    """

    def __init__(self, scratch: Path, size: int) -> None:
        self._scratch = scratch
        self._size = size
        self._stack = ExitStack()
        self._trees: dict[str, Path] = {}
        self._servers: queue.SimpleQueue[WandbServer] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        for _ in range(self._size):
            self._servers.put(self._stack.enter_context(WandbServer()))
        self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="faults-crew")
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._stack.close()

    def run(
        self,
        seed: int,
        *,
        without: str = "",
        is_aimed: bool = False,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> "Future[Outcome]":
        """Run the scenario of ``seed`` as soon as there is a place.

        Args:
            seed: Of everything that is random.
            without: A layer of the bridge's safety, see ``tests/layers``; empty for none.
            is_aimed: Whether faults strike where layers of safety act, instead of at random.
            stop_timeout_s: How long the bridge may deliver rows when it is told to end.
        """
        tree = self._tree(without) if without else None
        words = [without, str(seed), "aimed" if is_aimed else ""]
        scenario = partial(
            run_scenario, seed, tree=tree, is_aimed=is_aimed, stop_timeout_s=stop_timeout_s
        )
        return self._threads.submit(self._run, "-".join(filter(None, words)), scenario)

    def _tree(self, layer: str) -> Path:
        if layer not in self._trees:
            tree = self._stack.enter_context(BridgeWithout(load()[layer]))
            self._trees[layer] = tree.path
        return self._trees[layer]

    def _run(self, name: str, scenario: Callable[..., Outcome]) -> Outcome:
        server = self._servers.get()
        try:
            directory = self._scratch / name
            directory.mkdir()
            return scenario(directory=directory, server=server)
        finally:
            self._servers.put(server)
