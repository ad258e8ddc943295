"""Runs mutants against their tests, in several private copies of the tree at a time."""

import math
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass

from tests.mutants.table import Mutant
from tests.mutants.tree import Outcome, Result, Tree, files_of_checkout

__all__ = ["BaselineFailed", "Judged", "run"]

_TIMEOUT_S = 30.0  # and so many times as long as the tests take without a mutant:
_TIMES = 5

_BASELINE_TIMEOUT_S = 600.0


class BaselineFailed(Exception):
    """Tests fail without a mutant, so nothing could be said of those with one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant, and how its tests ended."""

    mutant: Mutant
    result: Result

    @property
    def is_killed(self) -> bool:
        """Whether the tests noticed. One that never ends was noticed, too."""
        return self.result.outcome in {Outcome.FAILED, Outcome.TIMEOUT}


def run(
    mutants: Collection[Mutant],
    *,
    jobs: int,
    told: Callable[[Judged], None] = lambda _: None,
    limit_s: float | None = None,
) -> Sequence[Judged]:
    """Judge mutants.

    Args:
        mutants: In any order.
        jobs: Copies of the tree, each with one run of tests at a time.
        told: Called with each as soon as it is known.
        limit_s: For each, of tests that are known to pass without a mutant; None to find out.

    Raises:
        BaselineFailed: Tests fail without a mutant, or could not be run with one.
    """
    files = files_of_checkout()
    suites = sorted({mutant.tests for mutant in mutants})
    with ExitStack() as stack:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for _ in range(max(1, min(jobs, len(mutants)))):
            trees.put(stack.enter_context(Tree(files)))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stopping = threading.Event()

        def test(tests: Sequence[str], mutant: Mutant | None, timeout_s: float) -> Result | None:
            if stopping.is_set():
                return None
            tree = trees.get()
            try:
                if mutant is None:
                    return tree.test(tests, timeout_s=timeout_s)
                with tree.applied(mutant):
                    return tree.test(tests, timeout_s=timeout_s)
            finally:
                trees.put(tree)

        try:
            if limit_s is None:
                begun = {s: pool.submit(test, s, None, _BASELINE_TIMEOUT_S) for s in suites}
                limits_s = {s: _limit_s(s, future.result()) for s, future in begun.items()}
            else:
                limits_s = dict.fromkeys(suites, limit_s)
            futures = {
                pool.submit(test, mutant.tests, mutant, limits_s[mutant.tests]): mutant
                for mutant in _longest_first(mutants, limits_s)
            }
            judged = []
            for future in as_completed(futures):
                result = future.result()
                if result is None:
                    continue
                if result.outcome is Outcome.BROKEN:
                    raise BaselineFailed(f"{futures[future].name}: {result.output[-2000:]}")
                judged.append(Judged(futures[future], result))
                told(judged[-1])
            return judged
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def _limit_s(tests: Sequence[str], result: Result | None) -> float:
    if result is None:
        return math.inf
    if result.outcome is not Outcome.PASSED:
        raise BaselineFailed(f"{' '.join(tests)} without a mutant: {result.output[-2000:]}")
    return _TIMEOUT_S + _TIMES * result.seconds


def _longest_first(
    mutants: Collection[Mutant], limits_s: Mapping[tuple[str, ...], float]
) -> Sequence[Mutant]:
    return sorted(mutants, key=lambda mutant: -limits_s[mutant.tests])
