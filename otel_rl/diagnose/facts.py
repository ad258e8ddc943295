"""What a diagnosis goes by, as the bridge keeps it beside the rows of a run.

Rows are reduced over workers, and leave the journal once a tracker has them. To say who did it, and
since when, it takes the parts: so a bounded history of them stays in the journal, live run or not.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

__all__ = ["Facts", "RowFacts", "SpanFacts", "StepFacts", "WorkerFacts"]


class RowFacts(NamedTuple):
    """A row of the run.

    Attributes:
        step: As of the row.
        time_ns: As of the row.
        values: Tracker key to value; none of the keys of single workers.
    """

    step: int
    time_ns: int
    values: Mapping[str, float]


class StepFacts(NamedTuple):
    """What decided how long a step took.

    Attributes:
        step: Which.
        end_ns: When it ended, of the rank that was last.
        path: (role, phase, worker, seconds on the critical path).
        busy: (role, phase, worker, seconds of the step's time), also of what was not on the path.
        clocks: (worker, seconds by which the clock of its host was ahead).
        trace_id: Of the step, in hexadecimal digits.
    """

    step: int
    end_ns: int
    path: Sequence[tuple[str, str, str, float]]
    busy: Sequence[tuple[str, str, str, float]]
    clocks: Sequence[tuple[str, float]]
    trace_id: str


class WorkerFacts(NamedTuple):
    """What one worker measured of a key, that became known since the last facts.

    Attributes:
        worker: ``<role>/<index>``.
        step: That they are of; None for what belongs to no step.
        measurements: How many are finite.
        total: Their sum; of a counter, what it counted.
        oddities: How many were NaN or infinite.
    """

    worker: str
    step: int | None
    measurements: int
    total: float
    oddities: int


class SpanFacts(NamedTuple):
    """How long the spans of one phase, of one worker, took that became known since the last facts.

    Attributes:
        step: In progress when they ended.
        role: Of the worker.
        phase: ``rl.phase``, or the span's name.
        worker: ``<role>/<index>``.
        is_wait: Whether nothing is done in it but wait.
        spans: How many.
        total_s: Their time, without that of spans within them.
        longest_s: The longest of them.
        failed: How many of them failed.
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
    """What became known of a run in a moment: about a second.

    Attributes:
        time_ns: When, by the bridge's clock. It grows.
        step: The step that was in progress.
        rows: Those that were closed.
        steps: Those that were explained.
        workers: By tracker key: what each of several workers measured.
        spans: By step, phase and worker.
        lags: (worker, least time from what its clock said at an export until that arrived, in s).
        lost: Workers whose lease has ended without a goodbye, or that said they failed.
    """

    time_ns: int
    step: int
    rows: Sequence[RowFacts] = ()
    steps: Sequence[StepFacts] = ()
    workers: Mapping[str, Sequence[WorkerFacts]] = {}
    spans: Sequence[SpanFacts] = ()
    lags: Sequence[tuple[str, float]] = ()
    lost: Sequence[str] = ()

    def encode(self) -> bytes:
        """As compressed JSON, in which NaN and infinities are words."""
        return zlib.compress(json.dumps(self, separators=(",", ":")).encode(), level=1)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """The opposite of ``encode``."""
        time_ns, step, rows, steps, workers, spans, lags, lost = json.loads(zlib.decompress(body))
        return cls(
            time_ns,
            step,
            [RowFacts(*row) for row in rows],
            [StepFacts(*explained) for explained in steps],
            {key: [WorkerFacts(*one) for one in some] for key, some in workers.items()},
            [SpanFacts(*span) for span in spans],
            [(worker, lag_s) for worker, lag_s in lags],
            lost,
        )
