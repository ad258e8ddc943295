"""A bound on how many experiments a bridge works for at once: each costs memory and a writer."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from otel_rl.bridge.counters import Refusal
from otel_rl.records import ExperimentKey

__all__ = ["Experiments", "Newcomers"]

_ASK_EVERY_S = 1.0  # a request may name ten thousand experiments for which there is no room


class Experiments:
    """Knows the experiments that are in use. Any thread may call any method.

    A known one is always taken. A new one counts from the moment in which a request names it, and
    becomes known once something of it is durable.

    Args:
        max_experiments: Known and new ones together.
        in_use: Those for which the bridge holds anything in memory or waiting. Asked at first, and
            when there seems to be no room, at most once a second: some may have gone.
        clock_s: Seconds that never go back.
    """

    def __init__(
        self,
        max_experiments: int,
        in_use: Callable[[], Collection[ExperimentKey]] = frozenset,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_experiments = max_experiments
        self._in_use = in_use
        self._clock_s = clock_s
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._known = set(in_use())
        self._asked_s = clock_s()
        # Whether somebody asks what is in use, and what was kept since he began to.
        self._is_asking = False
        self._kept_meanwhile: set[ExperimentKey] = set()
        self._new: Counter[ExperimentKey] = Counter()

    @contextmanager
    def request(self) -> Iterator["Newcomers"]:
        """The new experiments of one request; those that are not kept in the block are let go."""
        newcomers = Newcomers(self)
        try:
            yield newcomers
        finally:
            if newcomers.named:
                with self._lock:
                    self._new -= Counter(newcomers.named)

    def knows(self, key: ExperimentKey) -> bool:
        """Whether something of ``key`` was kept."""
        with self._lock:
            return key in self._known

    def _name(self, key: ExperimentKey, named: set[ExperimentKey]) -> bool:
        with self._lock:
            if self._take(key, named):
                return True
            if not self._may_ask():
                return False
            self._is_asking, self._kept_meanwhile = True, set()
        try:
            # The journal is asked, and no other request waits for its answer.
            in_use = set(self._in_use())
            with self._lock:
                self._known = in_use | self._kept_meanwhile
                return self._take(key, named)
        finally:
            self._is_asking = False

    def _take(self, key: ExperimentKey, named: set[ExperimentKey]) -> bool:
        """Whether the experiment is known, or there is room for it, which it then has."""
        if key in self._known or key in named:
            return True
        if key not in self._new and not self._has_room():
            return False
        self._new[key] += 1
        named.add(key)
        return True

    def _may_ask(self) -> bool:
        now_s = self._clock_s()
        if self._is_asking or now_s - self._asked_s < _ASK_EVERY_S:
            return False
        self._asked_s = now_s
        return True

    def _has_room(self) -> bool:
        return len(self._known.union(self._new)) < self._max_experiments

    def _keep(self, keys: Iterable[ExperimentKey]) -> None:
        with self._lock:
            kept = set(keys)
            self._known |= kept
            self._kept_meanwhile |= kept


class Newcomers:
    """The experiments of one request that the bridge did not know.

    Args:
        experiments: Those that it knows.

    Attributes:
        named: What was asked for and may come in.
    """

    def __init__(self, experiments: Experiments) -> None:
        self.named: set[ExperimentKey] = set()
        self._experiments = experiments

    def problem(self, key: ExperimentKey) -> tuple[Refusal, str] | None:
        """Why there is no room for ``key``, as reason and detail; None if there is."""
        if self._experiments._name(key, self.named):  # noqa: SLF001  # the two are one idea
            return None
        return Refusal.TOO_MANY_EXPERIMENTS, f"There is no room for a new experiment, {str(key)!r}"

    def keep(self, keys: Iterable[ExperimentKey]) -> None:
        """Something of ``keys`` is durable."""
        self._experiments._keep(keys)  # noqa: SLF001  # the two are one idea
