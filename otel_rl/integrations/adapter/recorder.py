"""Base of all adapters: starts a worker, and records a framework's metrics under common names."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from typing import Final, SupportsFloat, cast

from opentelemetry.metrics import Counter, Meter
from opentelemetry.metrics import _Gauge as Gauge  # the name in the API's own __all__

import otel_rl
from otel_rl.errors import OtelRLError
from otel_rl.semconv.aliases import Alias, Dialect, dialect
from otel_rl.semconv.names import (
    METRICS,
    OTEL_RL_FRAMEWORK_METRIC,
    OTEL_RL_FRAMEWORK_SCALE,
    RL_LOOP_ITERATION,
    RL_REDUCE,
)
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.api.mlogger import MLogger
from otel_rl.worker.drops import DropReason
from otel_rl.worker.identity.launcher import process_name
from otel_rl.worker.identity.names import (
    NO_NAMES,
    WorkerNames,
    named_place,
    run_word,
    worker_names,
)
from otel_rl.worker.identity.rank import launcher_index
from otel_rl.worker.session import GUARD, finished, running
from otel_rl.worker.tensors import PLAIN

__all__ = ["Recorder", "automatically", "is_instrumented", "logging_errors", "meter_of", "start"]

_SCOPE: Final = "otel_rl.integrations"
"""Of the meters, before the name of the framework."""


_is_automatic: ContextVar[bool] = ContextVar("otel_rl_is_automatic", default=False)

_switched_on: set[str] = set()
"""Frameworks whose adapter the program has switched on itself."""


def is_instrumented() -> bool:
    """Report whether the program uses ``otel_rl.init``, the W&B drop-in or the hook of W&B."""
    drop_in = sys.modules.get("otel_rl.integrations.wandb")
    wandb = sys.modules.get("wandb")
    if drop_in is not None and wandb is drop_in:
        return True
    if "wandb_log" in _switched_on and getattr(wandb, "run", None) is not None:
        return True
    session = running()
    return session is not None and not (session.is_guess or session.is_of_adapter)


@contextmanager
def automatically() -> Iterator[None]:
    """Make recorders that stop recording once the program makes its own."""
    token = _is_automatic.set(True)
    try:
        yield
    finally:
        _is_automatic.reset(token)


@contextmanager
def logging_errors() -> Iterator[None]:
    """Catch errors of an automatic adapter. A wrong setting is logged."""
    with GUARD:
        try:
            yield
        except OtelRLError as error:
            GUARD.warn("adapter", f"An adapter is not switched on: {error}")


def start(known: WorkerNames, given: WorkerNames = NO_NAMES, *, is_alone: bool = False) -> None:
    """Start a worker, unless the process already is one.

    Args:
        known: Names from the framework; the environment takes precedence. They are the project and
            the name of the run in the tracker, too.
        given: Names from the user.
        is_alone: True if the framework logs on one rank only; no other one is expected then.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    session = running()
    if session is not None and not session.is_guess:
        return
    names = worker_names(os.environ, process_name(), given=given, known=known, finished=finished)
    index = launcher_index(os.environ, named_place(process_name())[1]) if is_alone else None
    project = run_word(os.environ, "project", None, known.experiment if known.trial else None)
    name = run_word(os.environ, "name", None, known.trial or known.experiment)
    otel_rl.init(**asdict(names), index=index, project=project, name=name)
    session = running()
    if session is not None:
        session.is_of_adapter = True


def meter_of(framework: str, reduce: str | None = None) -> Meter | None:
    """Return the worker's meter for ``framework``; None if there is no worker.

    Args:
        framework: Its name in this package.
        reduce: Reduction of the values over the workers.
    """
    session = running()
    if session is None:
        return None
    attributes = {RL_REDUCE: reduce} if reduce else None
    scope = f"{_SCOPE}.{framework}"
    return session.providers.meter.get_meter(scope, otel_rl.__version__, None, attributes)


class Recorder:
    """Records metrics that a framework logs. Thread-safe; never raises and never waits.

    Args:
        framework: Its name.
        table: Its metrics; by default that of ``otel_rl/semconv/dialects``.
    """

    def __init__(self, framework: str, table: Dialect | None = None) -> None:
        self._framework = framework
        self._table = table
        self._dialect = dialect(framework) if table is None else table
        self._mlogger = MLogger(f"{_SCOPE}.{framework}")
        self._instruments: dict[tuple[str, str | None], Gauge | Counter] = {}
        self._is_automatic = _is_automatic.get()
        if not self._is_automatic:
            _switched_on.add(framework)

    def __reduce__(self) -> tuple[Callable[..., "Recorder"], tuple[object, ...]]:
        """Make a copy, also in another process: frameworks copy loggers and callbacks."""
        return _copied, (self._framework, self._table, self._is_automatic)

    @property
    def is_silent(self) -> bool:
        """True if the program itself reports, which would duplicate the metrics."""
        return self._is_automatic and (self._framework in _switched_on or is_instrumented())

    def record(
        self, metrics: Mapping[str, object], step: object = None, reduce: str | None = None
    ) -> None:
        """Record each number in ``metrics``; other values are counted, and logged once.

        Args:
            metrics: By the framework's own names.
            step: The training step, or None for time-driven metrics.
            reduce: Reduction over the workers, for names without a rule.
        """
        if self.is_silent:
            return
        with GUARD:
            unknown: dict[str, object] = {}
            for name, value in metrics.items():
                if value is None:
                    continue
                if not _is_number(value):
                    GUARD.not_a_number(name, type(value).__name__, f"{self._framework} logs it.")
                    continue
                alias = self._dialect.alias(name)
                if alias is None or self._record(name, alias, value, step):
                    unknown[name] = value
            if unknown:
                values = cast("Mapping[str, SupportsFloat]", unknown)
                self._mlogger.log(values, cast("int | None", step), reduce)

    def config(self, config: Mapping[str, object]) -> None:
        """Set the hyper-parameters of the run."""
        if self.is_silent:
            return
        otel_rl.log_config(config)

    def _record(self, name: str, alias: Alias, value: object, step: object) -> bool:
        """Record a value under its shared name.

        Returns:
            Whether it should be recorded under its own name, too: a counter's key is a total, and
            the framework's name stands for what a step adds to it.
        """
        instrument = self._instrument(alias)
        if instrument is None:
            GUARD.drop(
                DropReason.NOT_STARTED,
                f"otel_rl.integrations.{self._framework}: metrics arrived without a worker; "
                "they are dropped.",
            )
            return False
        if alias.scale != 1.0:
            value = cast("float", value) * alias.scale  # a tensor is scaled on its device
        attributes: dict[str, object] = dict(alias.attributes)
        if isinstance(instrument, Counter):
            instrument.add(cast("float", value), cast("dict[str, str]", attributes))
            return True
        attributes[OTEL_RL_FRAMEWORK_METRIC] = name
        if alias.scale != 1.0:
            attributes[OTEL_RL_FRAMEWORK_SCALE] = repr(alias.scale)
        if step is not None:
            attributes[RL_LOOP_ITERATION] = step
        instrument.set(cast("float", value), cast("dict[str, str]", attributes))
        return False

    def _instrument(self, alias: Alias) -> Gauge | Counter | None:
        key = (alias.name, alias.reduce)
        found = self._instruments.get(key)
        if found is None:
            meter = meter_of(self._framework, alias.reduce)
            if meter is None:
                return None
            spec = METRICS.get(alias.name)
            brief = spec.brief if spec is not None else ""
            # Frameworks report counters of the registry as increments.
            is_counter = spec is not None and spec.instrument is Instrument.COUNTER
            make = meter.create_counter if is_counter else meter.create_gauge
            found = self._instruments[key] = make(alias.name, alias.unit, brief)
        return found


def _copied(framework: str, table: Dialect | None, is_automatic: bool) -> Recorder:
    with automatically() if is_automatic else nullcontext():
        return Recorder(framework, table)


def _is_number(value: object) -> bool:
    return type(value) in PLAIN or hasattr(value, "__float__") or hasattr(value, "item")
