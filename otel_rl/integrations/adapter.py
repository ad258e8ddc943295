"""Public interface for adapters, including those of this package: what they need of otel_rl.

An adapter starts a worker with the names that its framework knows, and records the framework's
metrics, by a table of rules, under names that all frameworks share. No function here raises into a
training or waits, except ``start`` with wrong settings.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Final, SupportsFloat, cast

from opentelemetry.metrics import Counter, Meter
from opentelemetry.metrics import _Gauge as Gauge  # the name in the API's own __all__

import otel_rl
from otel_rl.errors import OtelRLError
from otel_rl.integrations.import_hook import when_imported, wrap
from otel_rl.semconv.aliases import Alias, Dialect, Rule, dialect
from otel_rl.semconv.names import (
    METRICS,
    OTEL_RL_FRAMEWORK_METRIC,
    OTEL_RL_FRAMEWORK_SCALE,
    RL_LOOP_ITERATION,
    RL_REDUCE,
)
from otel_rl.semconv.spec import Instrument, Reduction
from otel_rl.worker.api.trials import begin_trial, trial
from otel_rl.worker.drops import DropReason
from otel_rl.worker.forks import Uncut
from otel_rl.worker.identity import (
    NO_NAMES,
    WorkerNames,
    launcher_index,
    names_an_experiment,
    run_word,
    worker_names,
)
from otel_rl.worker.launch import process_name
from otel_rl.worker.session import GUARD, before_end, finished, running
from otel_rl.worker.session import GUARD as guard  # noqa: N811  # one object, not a constant
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import PLAIN

__all__ = [
    "Dialect",
    "DropReason",
    "Recorder",
    "Reduction",
    "Rule",
    "Steps",
    "Table",
    "Uncut",
    "WorkerNames",
    "after",
    "automatic",
    "automatically",
    "before",
    "begin_trial",
    "current_step",
    "deliver",
    "ends_steps",
    "flat",
    "guard",
    "is_instrumented",
    "is_named",
    "logging_errors",
    "may_be_number",
    "meter_of",
    "start",
    "trial",
    "when_imported",
    "wrap",
]

_SCOPE: Final = "otel_rl.integrations"
"""Of the meters, before the name of the framework."""

_DELIVERY_S = 5.0
"""Longest wait at the end of a training: Ray ends its processes without exit handlers."""

_MAX_DEPTH: Final = 32
"""Deeper nesting indicates an object graph, possibly circular, instead of metrics."""

_is_automatic: ContextVar[bool] = ContextVar("otel_rl_is_automatic", default=False)

_switched_on: set[str] = set()
"""Frameworks whose adapter the program has switched on itself."""

_adapters: set[str] = set()
"""Frameworks with an adapter that records."""


def is_named() -> bool:
    """Return whether this process is a worker, or its environment names an experiment."""
    return running() is not None or names_an_experiment(os.environ)


def is_instrumented() -> bool:
    """Return whether the program uses ``otel_rl.init``, the W&B drop-in or the hook of W&B."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if "wandb_log" in _switched_on and run is not None:
        return True
    session = running()
    return session is not None and not (session.is_guess or session.is_of_adapter)


@contextmanager
def automatically() -> Iterator[None]:
    """Make the block's recorders stop recording once the program makes its own."""
    token = _is_automatic.set(True)
    try:
        yield
    finally:
        _is_automatic.reset(token)


@contextmanager
def logging_errors() -> Iterator[None]:
    """Catch errors of an adapter that nobody has switched on. A wrong setting is logged."""
    with GUARD:
        try:
            yield
        except OtelRLError as error:
            GUARD.warn("adapter", f"An adapter is not switched on: {error}")


def automatic(make: Callable[[], object]) -> Any:
    """Return the result of ``make`` for an adapter that nobody has switched on.

    Recorders that ``make`` makes give way to those of the program. The result is None if the
    program reports by itself, or if ``make`` fails, which is logged.
    """
    if is_instrumented():
        return None
    found: list[object] = []
    with logging_errors(), automatically():
        found.append(make())
    return found[0] if found else None


def after(kind: Any, name: str, follow: Callable[[Any], object]) -> None:
    """Call ``follow`` with an object after each call of its method, as ``automatic`` does."""

    def by(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            result = original(self, *arguments, **named)
            automatic(lambda: follow(self))
            return result

        return method

    wrap(kind, name, by)


def before(owner: Any, name: str, follow: Callable[..., object]) -> None:
    """Call ``follow`` before each call of a function, with its arguments. Errors are counted."""
    # A framework may call it as its object is collected, when modules have lost their globals. All
    # has been delivered then.
    has_ended = sys.is_finalizing

    def by(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            if not has_ended():
                with GUARD:
                    follow(*arguments, **named)
            return original(*arguments, **named)

        return function

    wrap(owner, name, by)


def deliver(timeout_s: float | None = None) -> bool:
    """Deliver what was recorded within ``timeout_s`` (default 5).

    Returns whether that succeeded.
    """
    return otel_rl.flush(timeout_s=_DELIVERY_S if timeout_s is None else timeout_s)


def start(known: WorkerNames, given: WorkerNames = NO_NAMES, *, is_alone: bool = False) -> None:
    """Start a worker, unless the process already is one.

    Args:
        known: Names from the framework; the environment takes precedence. They also become the
            project and the name of the run in the tracker.
        given: Names from the user.
        is_alone: Whether the framework logs on one rank only, so that no other rank is expected.

    Raises:
        ConfigError: See ``otel_rl.init``.
    """
    if _end_open not in before_end:
        before_end.append(_end_open)
    session = running()
    if session is None or session.is_guess:
        place = process_name()
        names = worker_names(os.environ, place, given=given, known=known, finished=finished)
        project = known.experiment if known.trial else None
        otel_rl.init(
            **names._asdict(),
            index=launcher_index(os.environ, place) if is_alone else None,
            project=run_word(os.environ, "project", None, project),
            name=run_word(os.environ, "name", None, known.trial or known.experiment),
        )
        session = running()
        if session is not None:
            session.is_of_adapter = True


def meter_of(framework: str, reduce: str | None = None) -> Meter | None:
    """Return the worker's meter for a framework; None if there is no worker."""
    session = running()
    if session is None:
        return None
    attributes = {RL_REDUCE: reduce} if reduce else None
    scope = f"{_SCOPE}.{framework}"
    return session.providers.meter.get_meter(scope, otel_rl.__version__, None, attributes)


def flat(
    metrics: Mapping[Any, Any], separator: str = "/", prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each metric; names of nested metrics are joined by a separator."""
    for key, value in metrics.items():
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from flat(value, separator, f"{prefix}{key}{separator}", depth + 1)
        else:
            yield f"{prefix}{key}", value


def may_be_number(value: object) -> bool:
    """Return whether a value is a number, or has a method that converts it to one."""
    return type(value) in PLAIN or hasattr(value, "__float__") or hasattr(value, "item")


Table = Dialect | Callable[[], Dialect] | None
"""Metrics of a framework, or what returns them; None for its table in the registry."""


class Recorder:
    """Records metrics that a framework logs. Thread-safe; never raises and never waits.

    Attributes:
        framework: Name of the framework.
        is_automatic: Whether nobody has asked for the recorder: it gives way to what the program
            reports.

    Args:
        framework: Name of the framework.
        table: Table of the framework's metrics, or a function that returns the table at the first
            record; by default the framework's table in ``otel_rl/semconv/dialects``.
        is_hook: Whether the recorder is a hook, which stays silent where an adapter records.
    """

    def __init__(self, framework: str, table: Table = None, *, is_hook: bool = False) -> None:
        self.framework = framework
        self._table = table
        self._is_hook = is_hook
        if not is_hook:
            _adapters.add(framework)
        self._instruments: dict[tuple[str, str | None], Gauge | Counter] = {}
        self.is_automatic = _is_automatic.get()
        if not self.is_automatic:
            _switched_on.add(framework)

    def __reduce__(self) -> tuple[Callable[..., "Recorder"], tuple[object, ...]]:
        """Copy the recorder, also into another process: frameworks copy loggers and callbacks."""
        return _copied, (self.framework, self._table, self._is_hook, self.is_automatic)

    @property
    def is_silent(self) -> bool:
        """Return whether the program itself reports, which would duplicate the metrics."""
        if not self.is_automatic:
            return False
        has_adapter = self._is_hook and bool(_adapters)
        return has_adapter or self.framework in _switched_on or is_instrumented()

    def start(
        self, known: WorkerNames, given: WorkerNames = NO_NAMES, *, is_alone: bool = False
    ) -> None:
        """See the function ``start``; an adapter that nobody has switched on never raises."""
        with logging_errors() if self.is_automatic else nullcontext():
            start(known, given, is_alone=is_alone)

    def record(
        self, metrics: Mapping[str, object], step: object = None, reduce: str | None = None
    ) -> None:
        """Record each number in ``metrics``; other values are counted, and logged once.

        Args:
            metrics: Values by the framework's own names.
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
                if not may_be_number(value):
                    GUARD.not_a_number(name, type(value).__name__, f"{self.framework} logs it.")
                    continue
                alias = self._dialect.alias(name)
                if alias is None or self._record(name, alias, value, step):
                    unknown[name] = value
            if unknown:
                values = cast("Mapping[str, SupportsFloat]", unknown)
                at = cast("int | None", step)
                otel_rl.log(values, at, reduce, scope=f"{_SCOPE}.{self.framework}")

    @cached_property
    def _dialect(self) -> Dialect:
        if self._table is None:
            return dialect(self.framework)
        return self._table() if callable(self._table) else self._table

    def config(self, config: Mapping[str, object]) -> None:
        if self.is_silent:
            return
        otel_rl.log_config(config)

    def _record(self, name: str, alias: Alias, value: object, step: object) -> bool:
        """Record a value under its shared name. Returns whether to record its own name, too.

        A counter's shared name stands for a total, its framework's name for the growth in a step.
        """
        instrument = self._instrument(alias)
        if instrument is None:
            GUARD.drop(
                DropReason.NOT_STARTED,
                f"otel_rl.integrations.{self.framework}: metrics arrived without a worker; "
                "they are dropped.",
            )
            return False
        if alias.scale != 1.0:
            value = cast("float", value) * alias.scale  # a tensor is scaled on its device
        attributes: dict[str, object] = dict(alias.attributes)
        if step is not None:
            attributes[RL_LOOP_ITERATION] = step
        if isinstance(instrument, Counter):
            instrument.add(cast("float", value), cast("dict[str, str]", attributes))
            return True
        attributes[OTEL_RL_FRAMEWORK_METRIC] = name
        if alias.scale != 1.0:
            attributes[OTEL_RL_FRAMEWORK_SCALE] = repr(alias.scale)
        instrument.set(cast("float", value), cast("dict[str, str]", attributes))
        return False

    def _instrument(self, alias: Alias) -> Gauge | Counter | None:
        key = (alias.name, alias.reduce)
        found = self._instruments.get(key)
        if found is None:
            meter = meter_of(self.framework, alias.reduce)
            if meter is None:
                return None
            spec = METRICS.get(alias.name)
            brief = spec.brief if spec is not None else ""
            # Frameworks report counters of the registry as increments.
            is_counter = spec is not None and spec.instrument is Instrument.COUNTER
            make = meter.create_counter if is_counter else meter.create_gauge
            found = self._instruments[key] = make(alias.name, alias.unit, brief)
        return found


class Steps:
    """The open step of a training, and its phase, which a framework's events move on.

    All calls of one object come from the thread that trains.
    """

    def __init__(self) -> None:
        self._step, self._phase = ExitStack(), ExitStack()
        self.is_open = False

    def __reduce__(self) -> tuple[type["Steps"], tuple[()]]:
        """Copy without the open step: a copied callback follows another training."""
        return Steps, ()

    @staticmethod
    def of_thread() -> "Steps | None":
        """Return the steps of the training that began last in this thread, if any."""
        return _steps.get()

    def begin_training(self) -> None:
        """Become the steps of this thread; a training before it that failed unnoticed is over."""
        _end_open()
        _steps.set(self)

    def begin(self, number: int, phase: str = "", *, has_span: bool = True) -> None:
        """End the open step and phase, and begin a step in a phase."""
        self.end()
        self._step.enter_context(otel_rl.step(number))
        self.is_open = True
        self.enter(phase, has_span=has_span)

    def enter(self, phase: str, *, has_span: bool = True) -> None:
        """Enter a phase, which lasts until the next call; without an open step, between steps."""
        self._phase.close()
        if phase:
            self._phase.enter_context(otel_rl.phase(phase, span=has_span))

    def end(self, error: BaseException | None = None) -> None:
        """End the open step and phase, if any, with the error that has interrupted them."""
        self.is_open = False
        for opened in (self._phase, self._step):
            opened.__exit__(None if error is None else type(error), error, None)


_steps: ContextVar[Steps | None] = ContextVar("otel_rl_adapter_steps", default=None)


def ends_steps(train: Callable[..., Any]) -> Callable[..., Any]:
    """Return a training function that also ends the open step if the training raises.

    Frameworks tell callbacks nothing of a failure.
    """

    def training(*arguments: Any, **named: Any) -> Any:
        outer = _steps.get()
        _steps.set(None)
        try:
            return train(*arguments, **named)
        except BaseException as error:
            _end_open(error)
            raise
        finally:
            _steps.set(outer)

    return training


def _end_open(error: BaseException | None = None) -> None:
    steps = _steps.get()
    if steps is not None:
        with GUARD:
            steps.end(error)


def _copied(framework: str, table: Table, is_hook: bool, is_automatic: bool) -> Recorder:
    with automatically() if is_automatic else nullcontext():
        return Recorder(framework, table, is_hook=is_hook)
