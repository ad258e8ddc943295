"""Finds what the tests of one file leave behind in the process.

Files share a process with others, and chance says with which: an instrument, a patched
function or a thread that one leaves makes a test of another one fail, each time another one.

Looks at what is otel_rl's, and at settings of the interpreter that no library changes by its use.
"""

import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Final

from opentelemetry import context

from otel_rl.worker import served_policy, session
from otel_rl.worker.metrics.gauges import SCOPE_NAME
from otel_rl.worker.phases import flows

_ENDS_WITHIN_S: Final = 60.0
"""A thread that has been told to end does so far sooner, on a busy machine, too."""

_VARIABLES: Final = (
    "OTEL_",
    "OMPI_",
    "SLURM_",
    "RANK",
    "WORLD_SIZE",
    "TRACEPARENT",
    "HOME",
    "PATH",
)
"""Beginnings of the names of environment variables that a worker or a test reads."""

_PATCHED: Final = frozenset(
    {
        *("os", "shutil", "socket", "subprocess", "threading", "time"),
        *("opentelemetry.context", "opentelemetry.metrics", "opentelemetry.trace"),
    }
)
"""Modules of which tests replace functions, besides otel_rl's."""

_CALLED: Final = (FunctionType, type, classmethod, property, staticmethod)

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class State:
    """State of this process when the object is made.

    Attributes:
        facts: Settings of the interpreter, and of otel_rl's worker.
        functions: Functions, classes and methods, by the name of the module that has them.
        threads: Python's threads that are otel_rl's.
    """

    facts: dict[str, object] = field(
        default_factory=lambda: dict([*_interpreter(), *_logging(), *_worker()])
    )
    functions: dict[str, object] = field(default_factory=lambda: dict(_functions()))
    threads: frozenset[threading.Thread] = field(default_factory=lambda: frozenset(_threads()))

    def left(self) -> list[str]:
        """Return what has changed since. Waits for threads that are about to end."""
        left = [f"the thread {name} runs" for name in self._new_threads()]
        now = State()
        for name in sorted({*self.facts, *now.facts}):
            was, is_ = (facts.get(name, _ABSENT) for facts in (self.facts, now.facts))
            if was is not is_ and was != is_:
                left.append(f"{name} is {_shown(is_)} (was {_shown(was)})")
        left += [
            f"{name} is {_shown(now.functions[name])} (was {_shown(was)})"
            for name, was in self.functions.items()
            if now.functions.get(name, was) is not was
        ]
        return left

    def _new_threads(self) -> list[str]:
        if {*_threads()} - self.threads:
            gc.collect()  # a pool ends with its object
        deadline_s = time.monotonic() + _ENDS_WITHIN_S
        while True:
            news = {*_threads()} - self.threads
            if not news or time.monotonic() > deadline_s:
                return sorted(thread.name for thread in news)
            time.sleep(0.01)


def begin_anew() -> None:
    """Forget losses, recent logs, the served policy and the clock of a device."""
    served_policy.forget()
    flows.current().clock = None
    session.GUARD.forget()
    session.GUARD._next_log_s.clear()


def forget_the_launch() -> None:
    """Forget which runs this process is done with, and the launch that children would have."""
    session.finished.clear()
    os.environ.pop("OTEL_RL_LAUNCH", None)


@contextmanager
def own_instruments() -> Iterator[None]:
    """Remove the instruments that the block adds to the global MeterProvider.

    The next worker does without them. For programs there is no need of it.
    """
    assert session._providers is not None, "there was no worker yet"
    provider = session._providers.meter
    before = {scope: {*meter._instruments} for scope, meter in provider._meters.items()}
    yield
    for scope, meter in tuple(provider._meters.items()):
        if scope.name == SCOPE_NAME:
            continue
        if scope not in before:
            del provider._meters[scope]
        for key in meter._instruments.keys() - before.get(scope, set()):
            del meter._instruments[key]


@contextmanager
def process_of_a_command() -> Iterator[None]:
    """Put back what a command changes in its process: signals and the limit of open files."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [(number, signal.getsignal(number)) for number in numbers]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number, handler in handlers:
            signal.signal(number, handler)


def _shown(value: object) -> str:
    return "absent" if value is _ABSENT else f"{value!r:.200}"


def _threads() -> Iterator[threading.Thread]:
    kept = "otel-rl-device-copies"  # of the process, for ever
    named = [one for one in threading.enumerate() if one.name.startswith("otel-rl")]
    yield from (one for one in named if one.name != kept)


def _interpreter() -> Iterator[tuple[str, object]]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLES):
            yield f"the environment variable {name}", value
    for number in signal.valid_signals() - {signal.SIGALRM}:  # which pytest-timeout uses
        yield f"the handler of signal {number}", signal.getsignal(number)
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            yield name, resource.getrlimit(getattr(resource, name))
    yield "the working directory", os.getcwd()  # noqa: PTH109  # a string for the message
    yield "the time zone", time.tzname
    yield "the switch interval", sys.getswitchinterval()
    # Commands collect more rarely, which changes no result.
    yield "the collector of garbage", gc.isenabled()
    # Libraries have callbacks, too, from their first use on.
    yield "otel_rl's callbacks of it", [one for one in gc.callbacks if _is_ours(one)]
    yield "OpenTelemetry's context", dict(context.get_current())


def _logging() -> Iterator[tuple[str, object]]:
    yield "the level of logging.disable", logging.root.manager.disable
    logger = logging.getLogger("otel_rl")
    yield "the level of otel_rl's logger", logger.level
    yield "filters of otel_rl's logger", [*logger.filters]
    yield "the disabling of otel_rl's logger", logger.disabled
    handlers = [one for one in logger.handlers if not _is_pytests(one)]
    yield "handlers of otel_rl's logger", handlers


def _worker() -> Iterator[tuple[str, object]]:
    """State of otel_rl's worker, which there is one of in a process."""
    yield "the session", session.running()
    drop_in = sys.modules.get("otel_rl.integrations.wandb._run")
    yield "the run of W&B's drop-in", None if drop_in is None else drop_in.current()
    yield "flows with open phases", flows.open_flows()
    providers = session._providers
    meter = None if providers is None else providers.meter
    observed = [
        (scope.name, key)
        for scope, each in ({} if meter is None else meter._meters).items()
        if scope.name != SCOPE_NAME
        for key in each._instruments
        if key[0].startswith("observable")
    ]
    yield "observed instruments", observed


def _functions() -> Iterator[tuple[str, object]]:
    for path, module in tuple(sys.modules.items()):
        if path in _PATCHED or path.startswith("otel_rl."):
            yield from _functions_of(path, module)


def _functions_of(path: str, module: ModuleType) -> Iterator[tuple[str, object]]:
    for name, found in tuple(getattr(module, "__dict__", {}).items()):
        if isinstance(found, _CALLED):
            yield f"{path}.{name}", found
            if isinstance(found, type) and found.__module__ == path:
                for method, function in tuple(vars(found).items()):
                    if isinstance(function, _CALLED):
                        yield f"{path}.{name}.{method}", function


def _is_ours(one: object) -> bool:
    return str(getattr(one, "__module__", "")).startswith("otel_rl")


def _is_pytests(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest")
