"""Writes the log of a run as a journal, by the way that all data take: OTLP, rows, history.

So commands know one kind of run, and names of frameworks mean what they mean in adapters.
"""

import contextlib
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.scheduler import Pace, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.cli.logs.log import Log, Step
from otel_rl.diagnose.history.timings import is_step_time, timed_part
from otel_rl.records import Batch, ExperimentKey, ExperimentStatus, Signal
from otel_rl.semconv import names
from otel_rl.semconv.aliases import Alias, Dialect, dialect
from otel_rl.semconv.spec import Instrument
from otel_rl.worker.otlp.anyvalue import attributes, clean, plain_config

_FRAMEWORKS: Final = (
    *("trl", "verl", "stable_baselines3", "rllib", "openrlhf", "slime", "skyrl", "nemo_rl"),
    *("areal", "roll", "tunix", "prime_rl", "forge", "megatron"),
)
_FEWEST_NAMES: Final = 2  # one, such as `loss`, is that of any program
_PREFIX: Final = "train/"  # of Hugging Face's names in W&B and TensorBoard

_ROLE: Final = "trainer"
_ROUNDS: Final = 2_000  # each forces its steps to the disk; a longer log has several steps in one
_NS_PER_S: Final = 1_000_000_000
_START_S: Final = 1_700_000_000.0  # of a log without times
_END_S: Final = 60.0  # after the last step: all that waits for more data is over


def write_journal(log: Log, directory: Path) -> None:
    """Write the log as the one run of a new journal."""
    key = ExperimentKey(clean(log.name) or "log", clean(log.trial) or "run")
    names_of = _Names(log)
    with contextlib.closing(SqliteJournal(directory)) as journal:
        spool = Spool(journal)
        now_ns, batches = 0, list[Batch]()
        scheduler = Scheduler(
            spool,
            RunStore(journal, clock_ns=lambda: now_ns),
            AlignSettings(start_wait_s=0),
            Counters(),
            pace=Pace(commit_every_s=5.0, clock_s=lambda: 0.0),
        )

        def take(signal: Signal, body: bytes, time_s: float, *, is_last: bool = True) -> None:
            nonlocal now_ns
            now_ns = int(time_s * _NS_PER_S)
            batches.append(Batch(key, signal, body, now_ns))
            if is_last:
                spool.append(batches)
                batches.clear()
                while scheduler.round(now_ns):
                    pass

        steps = sorted(log.steps.items())
        times_s = _times_s(log, [step for _, step in steps])
        own_s = {} if names_of.has_step_time or not _has_times(log) else _durations(log, times_s)
        resource = _resource(key)
        # The page shows the configuration, and no notes.
        told = {"what_this_log_cannot_tell": [*limits(log)], **log.config}
        config, too_large = plain_config(told)
        if too_large:
            config["settings_too_large_to_show"] = too_large
        started = {names.RL_EXPERIMENT_CONFIG: config}
        begin = _event(resource, names.RL_EXPERIMENT_START, started, times_s[0])
        take(Signal.LOGS, begin, times_s[0])
        at_once = 1 + len(steps) // _ROUNDS
        for place, ((number, step), time_s) in enumerate(zip(steps, times_s, strict=True)):
            body = names_of.request(resource, number, step, time_s, own_s.get(number))
            take(Signal.METRICS, body, time_s, is_last=place % at_once == 0)
        has_failed = log.status is ExperimentStatus.CRASHED
        known = names.RlWorkerStatusValues
        ended = {names.RL_WORKER_STATUS: str(known.FAILED if has_failed else known.COMPLETE)}
        take(Signal.LOGS, _event(resource, names.RL_WORKER_END, ended, times_s[-1]), times_s[-1])
        now_ns += int(_END_S * _NS_PER_S)
        while scheduler.round(now_ns):
            pass


def limits(log: Log) -> Iterator[str]:
    """Yield in sentences what cannot be told from the log, and what to add."""
    yield (
        f"This run was read from {log.kind}: what one process has logged. It has no spans and no "
        "workers, so which worker, GPU or host is slow cannot be told, nor what a step waits for."
    )
    has_parts = any(timed_part(f"{_ROLE}/{key}") for key in log.keys) or any(
        alias.name == names.RL_PHASE_DURATION for alias in _Names(log).aliases.values()
    )
    if not has_parts:
        yield (
            "It has no times of parts of a step: a slow step is seen, if it is timed, but not "
            "which part is slow. Log the seconds of each part, such as timing_s/generate."
        )
    if not _has_times(log):
        yield (
            "It has no time of each step, so hours are made up, one second a step, and gaps and "
            "stops cannot be told. Log a column `timestamp`."
        )
    elif not _Names(log).has_step_time:
        yield "The time of a step is that from one logged row to the next one."
    if log.counts_rows:
        yield "It has no column with the step: rows are counted. Log a column `step`."
    if log.status is ExperimentStatus.RUNNING:
        yield "Whether the run goes on, and how it has ended, cannot be told."
    if log.omitted:
        yield f"It is long: its first {log.omitted} steps were left out."
    if log.went_back:
        yield "Steps were logged again, as after a resume: the later values count."
    if log.broken:
        yield f"{log.broken} of its records could not be read."
    if log.is_cut:
        yield "Its last record is half written or damaged; what is before it was read."
    yield "For all of this, run the program by `otel-rl run -- CMD`: see `otel-rl help read-a-log`."


def _has_times(log: Log) -> bool:
    return 2 * sum(step.time_s is not None for step in log.steps.values()) > len(log.steps)


def _times_s(log: Log, steps: Sequence[Step]) -> Sequence[float]:
    """Return a time for each step, in seconds since 1970, which never goes back."""
    found: list[float] = []
    known = [step.time_s for step in steps if step.time_s is not None]
    has_times = _has_times(log)
    shift = _START_S if not has_times or min(known) < _START_S / 2 else 0.0
    for step in steps:
        last_s = found[-1] if found else 0.0
        if not has_times:
            found.append(last_s + 1 if found else shift)
        elif step.time_s is None:
            found.append(last_s or min(known) + shift)
        else:
            found.append(max(step.time_s + shift, last_s))
    return found


def _durations(log: Log, times_s: Sequence[float]) -> Mapping[int, float]:
    """Return by step the time since the row before, for the usual number of steps between rows."""
    numbers = sorted(log.steps)
    apart = [b - a for a, b in pairwise(numbers)]
    usual = median(apart) if apart else 1
    took_s = zip(numbers[1:], apart, times_s, times_s[1:], strict=False)
    return {number: (b - a) * usual / gap for number, gap, a, b in took_s if b > a}


class _Names:
    """The meaning of a log's names, by the table of the framework that knows most of them.

    Attributes:
        framework: Empty if it is unknown.
        aliases: By the log's name.
        has_step_time: Whether a value is the time of a step.
    """

    def __init__(self, log: Log) -> None:
        self.framework, self.aliases = "", dict[str, Alias]()
        tally = Tally({name: len(_known(dialect(name), log.keys)) for name in _FRAMEWORKS})
        framework, known = max(tally.items(), key=lambda one: one[1])
        if known >= _FEWEST_NAMES:
            self.framework, self.aliases = framework, _known(dialect(framework), log.keys)
        self.has_step_time = any(
            alias.name == names.RL_ITERATION_DURATION for alias in self.aliases.values()
        ) or any(is_step_time(f"{_ROLE}/{key}") for key in log.keys)

    def request(
        self, resource: Resource, number: int, step: Step, time_s: float, took_s: float | None
    ) -> bytes:
        """Return the values of a step as an OTLP request."""
        request = ExportMetricsServiceRequest()
        of = request.resource_metrics.add()
        of.resource.CopyFrom(resource)
        scope = of.scope_metrics.add()
        scope.scope.name = f"otel_rl.integrations.{self.framework or 'log'}"
        time_ns = int(time_s * _NS_PER_S)
        values = list(step.values.items())
        for name, value in values:
            alias = self.aliases.get(name)
            is_counter = alias is not None and _is_counter(alias)
            if alias is None or is_counter:
                _add(scope.metrics.add(name=name), value, {}, number, time_ns)
            if alias is None:
                continue
            metric = scope.metrics.add(name=alias.name, unit=alias.unit)
            of_it = dict(alias.attributes)
            if not is_counter:
                of_it[names.OTEL_RL_FRAMEWORK_METRIC] = name
                if alias.scale != 1.0:
                    of_it[names.OTEL_RL_FRAMEWORK_SCALE] = repr(alias.scale)
            _add(metric, value * alias.scale, of_it, number, time_ns, is_counter=is_counter)
        if took_s is not None:
            metric = scope.metrics.add(name=names.RL_ITERATION_DURATION, unit="s")
            _add(metric, took_s, {}, number, time_ns)
        return request.SerializeToString()


def _known(table: Dialect, keys: set[str]) -> dict[str, Alias]:
    found = {}
    for key in sorted(keys):
        alias = table.alias(key) or (
            table.alias(key.removeprefix(_PREFIX)) if key.startswith(_PREFIX) else None
        )
        if alias is not None:
            found[key] = alias
    return found


def _is_counter(alias: Alias) -> bool:
    spec = names.METRICS.get(alias.name)
    return spec is not None and spec.instrument is Instrument.COUNTER


def _add(
    metric: Metric,
    value: float,
    of_it: Mapping[str, str],
    step: int,
    time_ns: int,
    *,
    is_counter: bool = False,
) -> None:
    if is_counter:
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA
        metric.sum.is_monotonic = True
        points = metric.sum.data_points
    else:
        points = metric.gauge.data_points
    point = points.add(as_double=value, time_unix_nano=time_ns, start_time_unix_nano=time_ns)
    point.attributes.extend(attributes({**of_it, names.RL_LOOP_ITERATION: step}))


def _resource(key: ExperimentKey) -> Resource:
    of = {
        names.RL_EXPERIMENT_NAME: key.experiment,
        names.RL_TRIAL_NAME: key.trial,
        names.RL_WORKER_ROLE: _ROLE,
        names.RL_WORKER_INDEX: 0,
        names.RL_WORKER_COUNT: 1,
        "service.instance.id": "log",
    }
    return Resource(attributes=attributes(of))


def _event(resource: Resource, name: str, of: Mapping[str, object], time_s: float) -> bytes:
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    logs.resource.CopyFrom(resource)
    record = logs.scope_logs.add().log_records.add(
        event_name=name, time_unix_nano=int(time_s * _NS_PER_S)
    )
    record.attributes.extend(attributes(of))
    return request.SerializeToString()
