"""What every adapter does: be a worker, and record a framework's metrics under common names."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Final, SupportsFloat, cast

from opentelemetry.metrics import Counter, Meter
from opentelemetry.metrics import _Gauge as Gauge  # the API's own __all__ has it under this name

import otel_rl
from otel_rl.errors import OtelRLError
from otel_rl.integrations.rename import Meaning, rules_of
from otel_rl.semconv.names import METRICS, RL_LOOP_ITERATION, RL_REDUCE
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.drops import DropReason
from otel_rl.worker.launcher import process_name
from otel_rl.worker.naming import NOBODY, Who, who
from otel_rl.worker.session import GUARD, Session, running
from otel_rl.worker.values import PLAIN

__all__ = ["Recorder", "automatically", "is_instrumented", "meter_of", "saying", "start"]

_log = logging.getLogger("otel_rl")

_MAX_SAID: Final = 1000
"""Bounds the memory against names that carry an id or a step."""


_is_automatic: ContextVar[bool] = ContextVar("otel_rl_is_automatic", default=False)

_started: Session | None = None
"""The worker that an adapter has started."""

_switched_on: set[str] = set()
"""Frameworks whose adapter the program has switched on itself."""


def is_instrumented() -> bool:
    """Whether the program reports itself: by ``otel_rl.init``, or by the W&B drop-in."""
    drop_in = sys.modules.get("otel_rl.compat.wandb")
    if drop_in is not None and sys.modules.get("wandb") is drop_in:
        return True
    session = running()
    return session is not None and not session.is_guess and session is not _started


@contextmanager
def automatically() -> Iterator[None]:
    """Recorders that are made inside are silent as soon as the program makes one of its own."""
    token = _is_automatic.set(True)
    try:
        yield
    finally:
        _is_automatic.reset(token)


@contextmanager
def saying() -> Iterator[None]:
    """Catch what an adapter that nobody asked for would raise. A wrong setting is said."""
    with GUARD:
        try:
            yield
        except OtelRLError as error:
            GUARD.warn("adapter", f"An adapter is not switched on: {error}")


def start(known: Who, said: Who = NOBODY) -> None:
    """Be a worker, unless the process is one already.

    Args:
        known: What the framework calls the process; the environment may know better.
        said: What the user calls it.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    session = running()
    if session is not None and not session.is_guess:
        return
    otel_rl.init(**asdict(who(os.environ, process_name(), said=said, known=known)))
    global _started  # one worker per process
    _started = running()


def meter_of(framework: str, reduce: str | None = None) -> Meter | None:
    """The worker's meter for ``framework``, of this process's own provider; None if there is none.

    Args:
        framework: Its name here.
        reduce: How the values of its instruments become one over the workers.
    """
    session = running()
    if session is None:
        return None
    attributes = {RL_REDUCE: reduce} if reduce else None
    scope = f"{__package__}.{framework}"
    return session.providers.meter.get_meter(scope, otel_rl.__version__, None, attributes)


class Recorder:
    """Records what a framework logs. Any thread may use it; it never raises and never waits.

    Args:
        framework: Whose names ``rename.toml`` has.
    """

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._rules = rules_of(framework)
        self._instruments: dict[tuple[str, str | None], Gauge | Counter] = {}
        self._said: set[str] = set()
        self._is_automatic = _is_automatic.get()
        if not self._is_automatic:
            _switched_on.add(framework)

    @property
    def is_silent(self) -> bool:
        """Whether the program reports itself, so that the same would be in the run twice."""
        return self._is_automatic and (self._framework in _switched_on or is_instrumented())

    def record(
        self, metrics: Mapping[str, object], step: object = None, reduce: str | None = None
    ) -> None:
        """Record each number in ``metrics``; what is none is counted, and said once.

        Args:
            metrics: By the framework's own names.
            step: The training step, or None for what is measured by time.
            reduce: How workers' values become one, for names that no rule knows.
        """
        if self.is_silent:
            return
        with GUARD:
            unknown: dict[str, object] = {}
            for name, value in metrics.items():
                if value is None:
                    continue
                if not _is_number(value):
                    self._skip(name, value)
                    continue
                meaning = self._rules(name)
                if meaning.is_renamed:
                    self._record(meaning, value, step)
                else:
                    unknown[name] = value
            if unknown:
                values = cast("Mapping[str, SupportsFloat]", unknown)
                otel_rl.mlogger.log(values, cast("int | None", step), reduce)

    def config(self, config: Mapping[str, object]) -> None:
        """Give the run its hyper-parameters."""
        if self.is_silent:
            return
        otel_rl.log_config(config)

    def _record(self, meaning: Meaning, value: object, step: object) -> None:
        instrument = self._instrument(meaning)
        if instrument is None:
            GUARD.drop(
                DropReason.NOT_STARTED,
                f"otel_rl.integrations.{self._framework}: metrics come while there is no worker; "
                "they are dropped.",
            )
            return
        if meaning.scale != 1.0:
            value = cast("float", value) * meaning.scale  # of a tensor, on its device
        attributes: dict[str, object] = dict(meaning.attributes)
        if isinstance(instrument, Counter):
            instrument.add(cast("float", value), cast("dict[str, str]", attributes))
            return
        if step is not None:
            attributes[RL_LOOP_ITERATION] = step
        instrument.set(cast("float", value), cast("dict[str, str]", attributes))

    def _instrument(self, meaning: Meaning) -> Gauge | Counter | None:
        key = (meaning.name, meaning.reduce)
        found = self._instruments.get(key)
        if found is None:
            meter = meter_of(self._framework, meaning.reduce)
            if meter is None:
                return None
            spec = METRICS.get(meaning.name)
            brief = spec.brief if spec is not None else ""
            # What the registry counts, a framework gives as the growth since it last said so.
            is_counter = spec is not None and spec.instrument is Instrument.COUNTER
            make = meter.create_counter if is_counter else meter.create_gauge
            found = self._instruments[key] = make(meaning.name, meaning.unit, brief)
        return found

    def _skip(self, name: str, value: object) -> None:
        GUARD.drops.add(DropReason.NOT_A_NUMBER)
        self._say(name, f"is not recorded: it is a {type(value).__name__}, not a number")

    def _say(self, name: str, what: str) -> None:
        if name not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(name)
            _log.warning("otel_rl.integrations.%s: %s %s.", self._framework, name, what)


def _is_number(value: object) -> bool:
    return type(value) in PLAIN or hasattr(value, "__float__") or hasattr(value, "item")
