"""Limits the number of runs that are live at a time, and of writers that start at a time."""

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_HolderT = TypeVar("_HolderT", bound=Hashable)

_LOOK_AGAIN_S: Final = 0.2  # how late a waiter notices that it was cancelled

# One that was asked to leave and is idle has done so by then.
_LEAVING_S: Final = 1.0

# Slots that each tenant finds free, unless it has as many: a writer is kept for half a minute.
_KEPT_FREE: Final = 2

# A start costs a fifth of a second of a core, W&B's some seconds. One that takes longer waits for
# its tracker, which must not delay others.
_STARTING_S: Final = 2.0


@dataclass(slots=True)
class _Waiting:
    tenant: str
    make_room: Callable[[], None]
    granted: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Held:
    """A slot that a run has taken.

    Attributes:
        make_room: Asks the run to leave.
        starting_until_s: Time until which the run's writer counts as starting; past once it is up.
        asked_s: Time at which the run was asked to leave; infinite if it was not.
    """

    tenant: str
    make_room: Callable[[], None]
    starting_until_s: float
    asked_s: float = math.inf

    @property
    def is_asked(self) -> bool:
        return self.asked_s < math.inf


class WriterSlots(Generic[_HolderT]):
    """Pool of at most ``limit`` holders. A waiter asks the least recently used one to leave.

    A holder leaves when it is idle, so no work is interrupted. Of several tenants, the one with the
    fewest slots is next; each finds some slots free, and no tenant is asked to leave for another
    that has as many. Any thread may call any method. No lock is held while ``make_room`` callbacks
    run.

    Args:
        limit: Number of holders.
        tenants: Names of the tenants that have a token.
        starting: How many writers may start at a time; by default, as many as leave the bridge a
            core.
        clock_s: Clock in seconds that never goes back.
    """

    def __init__(
        self,
        limit: int,
        *,
        tenants: Collection[str] = (),
        tenant: Callable[[_HolderT], str] = lambda _: "",
        starting: int | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._tenant = tenant
        # Together no more than half.
        self._kept_free = dict.fromkeys(
            tenants, min(_KEPT_FREE, limit // (2 * len(tenants))) if len(tenants) > 1 else 0
        )
        self._starting = starting or max(1, (os.cpu_count() or 1) - 1)
        self._clock_s = clock_s
        # _lock guards everything below.
        self._lock = threading.Lock()
        # In order of last use, longest ago first.
        self._holders: dict[_HolderT, _Held] = {}
        self._waiting: dict[_HolderT, _Waiting] = {}  # in order of arrival
        self._look_again_s = 0.0

    @contextmanager
    def hold(
        self, holder: _HolderT, make_room: Callable[[], None], cancelled: Callable[[], bool]
    ) -> Iterator[bool]:
        """Hold a slot for the length of the context.

        Yields:
            Whether a slot was taken: False if ``cancelled`` returned True first.
        """
        waiting = _Waiting(self._tenant(holder), make_room)
        with self._lock:
            self._waiting[holder] = waiting
            self._look_again_s = 0.0  # at once
        try:
            yield self._wait(waiting, cancelled)
        finally:
            with self._lock:
                self._waiting.pop(holder, None)
                self._holders.pop(holder, None)
                self._grant()

    def started(self, holder: _HolderT) -> None:
        """Report that the holder's writer is up, so that the next writer may start."""
        with self._lock:
            self._holders[holder].starting_until_s = 0.0
            self._grant()

    def used(self, holder: _HolderT) -> None:
        """Report that the holder was busy just now, so that it is the last one asked to leave."""
        with self._lock:
            self._holders[holder] = self._holders.pop(holder)

    def _wait(self, waiting: _Waiting, cancelled: Callable[[], bool]) -> bool:
        while not cancelled():
            self._look()
            if waiting.granted.wait(_LOOK_AGAIN_S):
                return True
        return False

    def _look(self) -> None:
        """Grant free slots, or ask one more holder to leave. One waiting thread calls this."""
        with self._lock:
            now_s = self._clock_s()
            if now_s < self._look_again_s:
                return
            self._look_again_s = now_s + _LOOK_AGAIN_S
            self._grant()
            asked = self._to_ask()
            if asked is not None:
                asked.asked_s = now_s
        if asked is not None:
            asked.make_room()

    def _grant(self) -> None:
        now_s = self._clock_s()
        while self._waiting and len(self._holders) < self._limit:
            starting = sum(held.starting_until_s > now_s for held in self._holders.values())
            if starting >= self._starting:
                return
            holder = next((one for one in self._in_order() if self._may_take(one)), None)
            if holder is None:
                return
            waiting = self._waiting.pop(holder)
            self._holders[holder] = _Held(
                waiting.tenant, waiting.make_room, starting_until_s=now_s + _STARTING_S
            )
            waiting.granted.set()

    def _in_order(self) -> list[_HolderT]:
        """Return the waiters: those of tenants with the fewest slots first, then by arrival."""
        used = self._used()
        return sorted(self._waiting, key=lambda holder: used[self._waiting[holder].tenant])

    def _may_take(self, holder: _HolderT) -> bool:
        """Return whether enough slots stay free for other tenants."""
        used, tenant = self._used(), self._waiting[holder].tenant
        if used[tenant] < self._kept_free.get(tenant, 0):
            return True
        owed = sum(
            max(0, n - used[other]) for other, n in self._kept_free.items() if other != tenant
        )
        return self._limit - len(self._holders) > owed

    def _to_ask(self) -> _Held | None:
        """Return the holder that the first waiter asks to leave.

        Each waiter asks one holder, and another holder if that one stays busy for long.
        """
        since_s = self._clock_s() - _LEAVING_S
        leaving = sum(since_s < held.asked_s < math.inf for held in self._holders.values())
        if leaving >= len(self._waiting):
            return None
        waiting = self._in_order()[0]
        if len(self._holders) < self._limit and self._may_take(waiting):
            return None  # it waits for others to start
        first = self._waiting[waiting].tenant
        staying = Counter(held.tenant for held in self._holders.values() if not held.is_asked)
        most = max(staying.values(), default=0)
        for held in self._holders.values():
            has_more = staying[held.tenant] == most > self._used()[first]
            if not held.is_asked and (held.tenant == first or has_more):
                return held
        return None

    def _used(self) -> "Counter[str]":
        return Counter(held.tenant for held in self._holders.values())
