"""Bound on a bridge's number of experiments: each costs memory and a writer process."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.tokens import NO_TOKEN, TokenShares
from otel_rl.records import ExperimentKey

Problem = tuple[Refusal, str] | None

_ASK_EVERY_S = 1.0  # one request may name ten thousand experiments over the bound


class Experiments:
    """Experiments in use. Any thread may call any method.

    A known experiment is always admitted. A new experiment counts as soon as a request names it,
    against the token that named it first, and becomes known once part of its data is durable.

    Args:
        max_experiments: Bound on known and new ones together.
        in_use: Returns the experiments with data in memory or in the journal. It is called at
            first, and at most once a second while the bound is reached, because some may have
            ended.
    """

    def __init__(
        self,
        max_experiments: int,
        in_use: Callable[[], Collection[ExperimentKey]] = frozenset,
        clock_s: Callable[[], float] = time.monotonic,
        shares: TokenShares | None = None,
    ) -> None:
        self._max_experiments = max_experiments
        self._clock_s = clock_s
        self._shares = shares or TokenShares(())
        # _lock guards everything below.
        self._lock = threading.Lock()
        # Whether a call of in_use runs, and the experiments kept since it began.
        self._is_asking = False
        self._kept_meanwhile: set[ExperimentKey] = set()
        self._known: set[ExperimentKey] = set()
        self._new: Counter[ExperimentKey] = Counter()
        self._owners: dict[ExperimentKey, str] = {}  # of both known and new ones
        self._used: Counter[str] = Counter()  # experiments per token
        self.begin(in_use)

    def begin(self, in_use: Callable[[], Collection[ExperimentKey]]) -> None:
        """Use ``in_use`` from now on. Call before the first request."""
        self._in_use = in_use
        self._asked_s = self._clock_s()
        self._set_known(in_use())

    @contextmanager
    def request(self, token: str = NO_TOKEN) -> Iterator["Newcomers"]:
        """Lend the new experiments of a request; those not kept within the block are released."""
        newcomers = Newcomers(self, token)
        try:
            yield newcomers
        finally:
            if newcomers.named:
                with self._lock:
                    self._new -= Counter(newcomers.named)
                    for key in newcomers.named:
                        if key not in self._known and key not in self._new:
                            self._used[self._owners.pop(key)] -= 1

    def knows(self, key: ExperimentKey) -> bool:
        with self._lock:
            return key in self._known

    def owner_of(self, key: ExperimentKey) -> str:
        """Return the token against which ``key`` counts; empty where no token has a share."""
        if not self._shares.are_needed:
            return ""
        with self._lock:
            owner = self._owners.get(key)
        return self._shares.owner_of(key) if owner is None else owner

    def keep(self, keys: Iterable[ExperimentKey]) -> None:
        with self._lock:
            for key in keys:
                self._known.add(key)
                self._kept_meanwhile.add(key)
                if key not in self._owners:  # released while a request of it was in flight
                    owner = self._owners[key] = self._shares.owner_of(key)
                    self._used[owner] += 1

    def _name(self, key: ExperimentKey, token: str, named: set[ExperimentKey]) -> Problem:
        with self._lock:
            fault = self._take(key, token, named)
            if fault is None or not self._may_ask():
                return fault
            self._is_asking, self._kept_meanwhile = True, set()
        try:
            # The journal is read without the lock, so other requests do not wait for it.
            in_use = set(self._in_use())
            with self._lock:
                self._set_known(in_use | self._kept_meanwhile)
                return self._take(key, token, named)
        finally:
            self._is_asking = False

    def _fault(self, key: ExperimentKey, token: str) -> Problem:
        share = self._shares.of(token, self._max_experiments)
        if self._shares.are_needed and self._used[token] >= share:
            detail = (
                f"Token {token} has its share of {share} experiments, {str(key)!r} is another one"
            )
            return Refusal.SHARE_USED_UP, detail
        if len(self._owners) >= self._max_experiments:
            detail = f"There is no room for a new experiment, {str(key)!r}"
            return Refusal.TOO_MANY_EXPERIMENTS, detail
        return None

    def _take(self, key: ExperimentKey, token: str, named: set[ExperimentKey]) -> Problem:
        """Reserve a place for an experiment if it is new; return None if it is admitted."""
        if key in self._known or key in named:
            return None
        if key not in self._new:
            fault = self._fault(key, token)
            if fault is not None:
                return fault
            self._owners[key] = token
            self._used[token] += 1
        self._new[key] += 1
        named.add(key)
        return None

    def _may_ask(self) -> bool:
        now_s = self._clock_s()
        if self._is_asking or now_s - self._asked_s < _ASK_EVERY_S:
            return False
        self._asked_s = now_s
        return True

    def _set_known(self, keys: Iterable[ExperimentKey]) -> None:
        self._known = set(keys)
        owners = self._owners
        self._owners = {}
        for key in self._known.union(self._new):
            owner = owners.get(key)
            self._owners[key] = self._shares.owner_of(key) if owner is None else owner
        self._used = Counter(self._owners.values())


class Newcomers:
    """Experiments of one request that are new to the bridge.

    Args:
        experiments: The experiments that are known.

    Attributes:
        named: Admitted experiments that the request names.
    """

    def __init__(self, experiments: Experiments, token: str = NO_TOKEN) -> None:
        self.named: set[ExperimentKey] = set()
        self._experiments = experiments
        self._token = token

    def problem(self, key: ExperimentKey, team: str | None = None) -> Problem:
        """Return reason and detail if there is no room for ``key``, else None.

        Args:
            team: The team for which a gateway sends the request; None for the team of the request's
                token.
        """
        token = self._token if team is None else team
        return self._experiments._name(key, token, self.named)  # noqa: SLF001  # the two are one idea

    def keep(self, keys: Iterable[ExperimentKey]) -> None:
        self._experiments.keep(keys)
