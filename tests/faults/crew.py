"""Runs several scenarios at a time, each with a W&B server of its own."""

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.outcome import Outcome
from tests.faults.scenario import run_scenario
from tests.mutants.table import load
from tests.mutants.tree import Tree, files_of_checkout
from tests.wandb_server import WandbServer

__all__ = ["Crew"]


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._stack.close()

    def run(self, seed: int, *, mutant: str = "") -> "Future[Outcome]":
        """Run the scenario of ``seed`` as soon as there is a place.

        Args:
            seed: Of everything that is random.
            mutant: Of the bridge, from the table in ``tests/mutants``; empty for none.
        """
        tree = self._tree(mutant) if mutant else None
        return self._threads.submit(self._run, seed, mutant, tree)

    def _tree(self, mutant: str) -> Path:
        if mutant not in self._trees:
            tree = self._stack.enter_context(Tree(files_of_checkout()))
            self._stack.enter_context(tree.applied(load()[mutant]))
            self._trees[mutant] = tree.path
        return self._trees[mutant]

    def _run(self, seed: int, mutant: str, tree: Path | None) -> Outcome:
        server = self._servers.get()
        try:
            directory = self._scratch / (f"{mutant}-{seed}" if mutant else str(seed))
            directory.mkdir()
            return run_scenario(seed, directory, server, tree=tree)
        finally:
            self._servers.put(server)
