"""Faults of a run, ``KIND[@STEP][:SIZE][@WORKER]``, and hooks on the work of a process for them.

    slow_generation                  every generator, from 40 % of the steps on, twenty times slower
    slow_generation@30:4@generator/1 generator 1, from step 30 on, four times slower
    straggler@trainer/0              trainer rank 0, everything else by default

A fault affects the processes only: no telemetry reports it, and no hook records anything. Without
an instruction of the orchestrator there is none.
"""

import gc
import re
import resource
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict

from otel_rl.demo import clock

Process = tuple[str, int]
"""Role and index."""


class Kind(StrEnum):
    """Kind of fault."""

    NONE = "none"
    SLOW_GENERATION = "slow_generation"
    SLOW_REWARD = "slow_reward"
    SLOW_TRAINING = "slow_training"
    STRAGGLER = "straggler"
    SLOW_SYNC = "slow_sync"
    STARVATION = "starvation"
    EVICTION = "eviction"
    STALE_POLICY = "stale_policy"
    CRASH_LOOP = "crash_loop"
    KV_THRASH = "kv_thrash"
    GC_PAUSES = "gc_pauses"
    NETWORK_DELAY = "network_delay"
    NAN = "nan"
    REWARD_BUG = "reward_bug"
    POISONED_REWARDS = "poisoned_rewards"
    DEAD_GROUPS = "dead_groups"
    CLOCK_SKEW = "clock_skew"
    MEMORY_GROWTH = "memory_growth"
    STALE_SERVER = "stale_server"


@dataclass(frozen=True, slots=True)
class _Spec:
    """Specification of a kind.

    Attributes:
        words: Description; ``{size}`` is the size.
        size: Default size.
        roles: Roles it can affect.
        one: True if it affects one process, by default the last of the first role.
        least: The smallest valid size; None if every number is valid.
        from_start: True if it starts with the first step by default.
    """

    words: str
    size: float
    roles: tuple[str, ...]
    one: bool = False
    least: float | None = 1
    from_start: bool = False


_SPECS = {
    Kind.NONE: _Spec("no fault, and no generator is killed half-way", 1, ()),
    Kind.SLOW_GENERATION: _Spec("decoding takes {size} times as long", 20, ("generator",)),
    Kind.SLOW_REWARD: _Spec(
        "scoring takes {size} s longer for each prompt", 0.1, ("reward",), least=0
    ),
    Kind.SLOW_TRAINING: _Spec("forward and backward take {size} times as long", 4, ("trainer",)),
    Kind.STRAGGLER: _Spec(
        "forward and backward of one rank take {size} times as long", 4, ("trainer",), one=True
    ),
    Kind.SLOW_SYNC: _Spec(
        "each transfer of weights, push or pull, takes {size} s longer",
        0.8,
        ("weight_store",),
        least=0,
    ),
    Kind.STARVATION: _Spec("prompts arrive {size} times slower than before", 5, ("orchestrator",)),
    Kind.EVICTION: _Spec(
        "prompts are admitted without limit, and the buffer stores each group {size} times",
        4,
        ("replay_buffer",),
    ),
    Kind.STALE_POLICY: _Spec(
        "only a policy that is {size} versions newer is loaded", 5, ("generator",)
    ),
    Kind.CRASH_LOOP: _Spec(
        "one process crashes each time that it has served {size} requests",
        40,
        ("generator",),
        one=True,
    ),
    Kind.KV_THRASH: _Spec(
        "the KV cache is {size} times smaller, or just fits one request", 4, ("generator",)
    ),
    Kind.GC_PAUSES: _Spec(
        "the garbage collector stops one process for {size} s, again and again",
        0.5,
        ("trainer", "generator", "reward", "replay_buffer"),
        one=True,
        least=0,
    ),
    Kind.NETWORK_DELAY: _Spec(
        "each message to the next process on the way of the data, and its answer, take {size} s "
        "longer",
        0.2,
        ("trainer", "generator", "reward"),
        least=0,
    ),
    Kind.NAN: _Spec("one gradient of one rank has a NaN in it", 1, ("trainer",), one=True),
    Kind.REWARD_BUG: _Spec(
        "every reward is {size}; -1 turns rewards around", 0, ("reward",), least=None
    ),
    Kind.POISONED_REWARDS: _Spec(
        "the sandbox of a share of {size} of the samples fails, and these get a reward of 0",
        0.8,
        ("reward",),
        least=0,
    ),
    Kind.DEAD_GROUPS: _Spec(
        "all answers to a prompt get their mean reward, for a share of {size} of the prompts",
        0.95,
        ("reward",),
        least=0,
    ),
    Kind.CLOCK_SKEW: _Spec(
        "the wall clock of one process, as if on a host of its own, is {size} s ahead",
        20,
        ("generator", "trainer", "reward"),
        one=True,
        least=None,
        from_start=True,
    ),
    Kind.MEMORY_GROWTH: _Spec(
        "one rank keeps {size} MiB more in each step, and would have no more soon after the run",
        16,
        ("trainer",),
        one=True,
    ),
    Kind.STALE_SERVER: _Spec(
        "one process keeps its weights, and says that it has loaded new ones",
        1,
        ("generator",),
        one=True,
    ),
}

_DEFAULT_SHARE = 0.4  # of the steps are unaffected, for comparison
_SYNTAX = re.compile(
    r"(?P<kind>[a-z_]+)(?:@(?P<step>[0-9]+))?(?::(?P<size>-?[0-9]+(?:\.[0-9]+)?))?"
    r"(?:@(?P<worker>[a-z_]+(?:/[0-9]+)?))?"
)


class Fault(BaseModel):
    """Fault of a run.

    Attributes:
        step: First step; None for the kind's default.
        size: Size; None for the kind's default.
        worker: ``role`` or ``role/index``; None for the kind's default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    step: int | None = None
    size: float | None = None
    worker: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``KIND[@STEP][:SIZE][@WORKER]``.

        Raises:
            ValueError: Wrong syntax, or the kind cannot affect this role.
        """
        found = _SYNTAX.fullmatch(text)
        if found is None:
            raise ValueError(f"write KIND[@STEP][:SIZE][@WORKER] (got {text!r})")
        if found["kind"] not in set(Kind):
            raise ValueError(f"one of {', '.join(Kind)} (got {found['kind']!r})")
        step, size = found["step"], found["size"]
        fault = cls(
            kind=Kind(found["kind"]),
            step=None if step is None else int(step),
            size=None if size is None else float(size),
            worker=found["worker"],
        )
        roles, least = _SPECS[fault.kind].roles, _SPECS[fault.kind].least
        if least is not None and fault.amount < least:
            raise ValueError(f"the size of {fault.kind} is at least {least:g} (got {size})")
        if fault.worker is not None and fault.worker.partition("/")[0] not in roles:
            raise ValueError(f"{fault.kind} affects {' or '.join(roles) or 'no process'}")
        return fault

    @property
    def amount(self) -> float:
        return _SPECS[self.kind].size if self.size is None else self.size

    @property
    def words(self) -> str:
        return _SPECS[self.kind].words.format(size=f"{self.amount:g}")

    @property
    def is_of_one(self) -> bool:
        return _SPECS[self.kind].one or (self.worker is not None and "/" in self.worker)

    def first_step(self, steps: int) -> int:
        """Return the first step with the fault, in a run of so many steps."""
        if self.step is not None:
            return max(1, self.step)
        return 1 if _SPECS[self.kind].from_start else max(1, round(steps * _DEFAULT_SHARE))

    def victims(self, processes: Sequence[Process]) -> list[Process]:
        """Return the affected ones of the run's processes.

        Raises:
            ValueError: Its worker is not one of them.
        """
        spec = _SPECS[self.kind]
        if not spec.roles:
            return []
        role, _, index = (self.worker or spec.roles[0]).partition("/")
        found = [process for process in processes if process[0] == role]
        if index:
            found = [process for process in found if process[1] == int(index)]
        elif spec.one:
            found = found[-1:]
        if not found:
            raise ValueError(f"there is no {self.worker}")
        return found


class FaultPlan:
    """Faults of one run, by step and process."""

    def __init__(
        self, faults: Sequence[Fault], *, steps: int, processes: Sequence[Process]
    ) -> None:
        self._faults = [
            (fault.first_step(steps), fault, frozenset(fault.victims(processes)))
            for fault in faults
        ]

    def beginning(self, step: int) -> list[tuple[Fault, frozenset[Process]]]:
        """Return the faults that begin with this step, each with its processes."""
        return [(fault, victims) for first, fault, victims in self._faults if first == step]

    def faults(self, process: Process, *, step: int) -> dict[Kind, float]:
        """Return the active faults of a process that starts in this step, with their sizes."""
        return {
            fault.kind: fault.amount
            for first, fault, victims in self._faults
            if first <= step and process in victims
        }


def kinds_help() -> str:
    return "\n".join(f"{kind:<16} {Fault(kind=kind).words}" for kind in Kind)


def affected_roles(kind: Kind) -> str:
    """Describe the affected role, and the others that may be named."""
    spec = _SPECS[kind]
    if not spec.roles:
        return "no process"
    first, *others = spec.roles
    many = "one" if spec.one else "every"
    return f"{many} {first}" + (f" (or {', '.join(others)})" if others else "")


_SPARE = 1.15  # times the memory that a process keeps until the end of the run

HEAP_OBJECTS = 1_000_000  # tracked by the collector; one pass over them takes some 30 ms


class FaultInjection:
    """Active faults of the process. Thread-safe."""

    def __init__(self) -> None:
        # Written by one thread; a dict lookup is atomic.
        self._sizes: dict[Kind, float] = {}
        self._begun: set[Kind] = set()
        self._kept: list[bytes] = []

    def begin(self, faults: Mapping[Kind, float]) -> None:
        """Start these faults with these sizes, unless already active."""
        for kind, size in faults.items():
            if kind in self._begun:
                continue
            self._begun.add(kind)
            self._sizes[kind] = size
            if kind is Kind.CLOCK_SKEW:
                clock.set_ahead(size)
            if kind is Kind.GC_PAUSES:
                threading.Thread(
                    target=_pause_for_ever, args=(size,), name="heap", daemon=True
                ).start()

    def size(self, kind: Kind) -> float | None:
        """Return the present size of a fault; None if it is not active."""
        return self._sizes.get(kind)

    def once(self, kind: Kind) -> bool:
        """Report whether a one-time fault is due, and end it."""
        return self._sizes.pop(kind, None) is not None

    @contextmanager
    def slowed(self, *kinds: Kind) -> Iterator[None]:
        """Extend the ``with`` block by the factors of the faults.

        The process sleeps, as on a throttled machine, and takes no CPU from the others.
        """
        begun_s = time.perf_counter()
        yield
        for kind in kinds:
            size = self.size(kind)
            if size is not None:
                time.sleep((size - 1) * (time.perf_counter() - begun_s))

    def delay(self, kind: Kind) -> None:
        size = self.size(kind)
        if size is not None:
            time.sleep(size)

    def keep_memory(self, steps_left: int) -> None:
        """Keep more memory than before, of a little more than the rest of the run takes."""
        size = self.size(Kind.MEMORY_GROWTH)
        if size is None:
            return
        n_bytes = int(size * (1 << 20))
        if not self._kept:
            # Address space that is in no use yet counts for the limit, too.
            most = psutil.Process().memory_info().data + int(_SPARE * steps_left * n_bytes)
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        self._kept.append(b"\1" * n_bytes)

    def message_travels(self) -> None:
        """Delay a message to another process, or its answer."""
        self.delay(Kind.NETWORK_DELAY)


def _pause_for_ever(pause_s: float) -> None:
    """Alternate garbage collections of a large heap for ``pause_s`` with equal pauses."""
    heap: list[list[object]] = [[] for _ in range(HEAP_OBJECTS)]
    while heap:
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < pause_s:
            gc.collect()  # holds the interpreter lock throughout
        time.sleep(pause_s)
