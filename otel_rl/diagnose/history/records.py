"""Records for a diagnosis, as the bridge stores them beside the rows of a run.

Rows are reduced over workers, and leave the journal once a tracker has them. Finding a faulty
worker, and the first faulty step, needs the parts: so a bounded history of parts stays in the
journal, during the run and after it.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from itertools import starmap
from typing import Any, Final, NamedTuple, Self

import orjson

from otel_rl.records import WorkerFailure

ALL_RECORDED: Final = 64
"""Workers of one key, or of one phase of a role, of which a step of a snapshot has all.

Of more it has ``MOST_EXTREME``: that another one is absent tells nothing.
"""

MOST_EXTREME: Final = 32
"""Workers of a larger number that are recorded: those with the lowest and the highest means."""

OWN_STEP: Final = "worker/step/number"
"""Key, after the role, of the step in which a worker is."""

PARTIAL_PATH: Final = "critical_path/partial"
"""Key: number of workers whose spans the critical path of a step may lack."""


class RowFacts(NamedTuple):
    """A row of the run.

    Attributes:
        values: Tracker key to value, without the keys of single workers.
        replaces: Whether the values replace those of earlier rows of the same step and attempt.
    """

    step: int
    time_ns: int
    values: Mapping[str, float]
    attempt: int = 1
    replaces: bool = False


class StepFacts(NamedTuple):
    """Critical path and other facts of a step.

    Attributes:
        end_ns: End of the step on the last rank.
        path: (role, phase, worker, seconds on the critical path).
        busy: (role, phase, worker, seconds of the step's time), also off the critical path.
        clocks: (worker, seconds by which its host's clock was ahead).
        trace_id: Trace id of the step, in hexadecimal digits.
        values: Tracker key to value of the row with the step's analysis.
    """

    step: int
    end_ns: int
    path: Sequence[tuple[str, str, str, float]]
    busy: Sequence[tuple[str, str, str, float]]
    clocks: Sequence[tuple[str, float]]
    trace_id: str
    attempt: int = 1
    values: Mapping[str, float] = {}


class WorkerFacts(NamedTuple):
    """New measurements of one key by one worker.

    Attributes:
        worker: ``<role>/<index>``.
        step: Step of the measurements; None without one.
        measurements: Number of finite measurements.
        total: Sum of the measurements; of a counter, its increase.
        oddities: Number of measurements that are NaN or infinite.
    """

    worker: str
    step: int | None
    measurements: int
    total: float
    oddities: int


class SpanFacts(NamedTuple):
    """New spans of one phase of one worker.

    Attributes:
        step: Step in progress when the spans ended.
        phase: ``rl.phase``, or the span's name.
        worker: ``<role>/<index>``.
        is_wait: Whether the phase only waits.
        total_s: Time of the spans, without that of nested spans.
        longest_s: Time of the longest span.
    """

    step: int
    role: str
    phase: str
    worker: str
    is_wait: bool
    spans: int
    total_s: float
    longest_s: float
    failed: int


class Facts(NamedTuple):
    """Snapshot: the new facts of a run in about a second.

    Attributes:
        time_ns: Time by the bridge's clock, which grows from snapshot to snapshot.
        step: Step in progress.
        rows: Closed rows.
        steps: Explained steps.
        workers: By tracker key, measurements of each of several workers.
        spans: Spans by step, phase and worker.
        lags: (worker, least time from an export by the worker's clock to its arrival, in s).
        lost: Workers whose lease has expired without a reported end, or that reported a failure.
        failures: Failures of workers with their causes, new or changed.
        status: Status of the run by its workers, as ``ExperimentStatus``; empty before the first
            export.
        attempt: Attempt in progress.
        returned: Workers whose loss is withdrawn: they were silent, and report again.
        places: (worker, host, process id there) of new places; an empty host is unknown.
    """

    time_ns: int
    step: int
    rows: Sequence[RowFacts] = ()
    steps: Sequence[StepFacts] = ()
    workers: Mapping[str, Sequence[WorkerFacts]] = {}
    spans: Sequence[SpanFacts] = ()
    lags: Sequence[tuple[str, float]] = ()
    lost: Sequence[str] = ()
    failures: Sequence[WorkerFailure] = ()
    status: str = ""
    attempt: int = 1
    returned: Sequence[str] = ()
    places: Sequence[tuple[str, str, int | None]] = ()

    def encode(self) -> bytes:
        """Encode as compressed JSON, in which NaN and infinities are strings."""
        before = self.time_ns, self.step, self.rows, self.steps
        after = (
            *(self.spans, self.lags, self.lost),
            *([astuple(one) for one in self.failures], self.status, self.attempt),
            *(self.returned, self.places),
        )
        parts = _json(before)[:-1], _encode_workers(self.workers), _json(after)[1:]
        return zlib.compress(b",".join(parts), level=1)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        time_ns, step, rows, steps, workers, spans, lags, lost, failures, status, attempt, *rest = (
            _read_json(zlib.decompress(body))
        )
        returned, places = [*rest, (), ()][:2]  # not in journals of format 10, and 13
        return cls(
            time_ns,
            step,
            [RowFacts(*row) for row in rows],
            [StepFacts(*explained) for explained in steps],
            WorkerFields(workers),
            [SpanFacts(*span) for span in spans],
            [(worker, lag_s) for worker, lag_s in lags],
            lost,
            [WorkerFailure(*one) for one in failures],
            status,
            attempt,
            returned,
            [(worker, host, pid) for worker, host, pid in places],
        )


class WorkerFields(Mapping[str, Sequence[WorkerFacts]]):
    """Facts of workers as plain fields, which become ``WorkerFacts`` on demand.

    Args:
        told: By tracker key, the fields of each ``WorkerFacts``.
    """

    def __init__(self, told: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        self.told = told

    def __getitem__(self, key: str) -> Sequence[WorkerFacts]:
        return [*starmap(WorkerFacts, self.told[key])]

    def __iter__(self) -> Iterator[str]:
        return iter(self.told)

    def __len__(self) -> int:
        return len(self.told)

    def __repr__(self) -> str:
        return repr(dict(self))


def columns_of(facts: Facts) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
    """Yield (tracker key, columns of ``WorkerFacts``) of workers' measurements.

    Measurements without a step belong to the step in progress.
    """
    of = facts.workers
    for key, some in (of.told if isinstance(of, WorkerFields) else of).items():
        if some:
            workers, steps, *others = zip(*some, strict=True)
            if None in steps:
                steps = tuple(facts.step if step is None else step for step in steps)
            yield key, (workers, steps, *others)


def _json(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _read_json(text: bytes) -> Any:
    """Decode with the faster library, which knows no NaN and no infinities."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _encode_workers(workers: Mapping[str, Sequence[WorkerFacts]]) -> bytes:
    """Encode most of a record, with the faster library where it writes the same values."""
    if isinstance(workers, WorkerFields):
        plain = workers.told
    else:
        plain = {
            key: [*map(tuple, some)] for key, some in workers.items()
        }  # it knows no named ones
    if math.isfinite(sum([total for some in plain.values() for _, _, _, total, _ in some])):
        return orjson.dumps(plain)
    return _json(plain)
