"""Journals with runs to look at: histories as a bridge leaves them, of any size."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from otel_rl.bridge.journal.log import Appended, Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.bridge.rows.rollouts import Finished, encoded, head_of, identity_of
from otel_rl.bridge.rows.span_log import span_log
from otel_rl.diagnose.history.records import Facts, RowFacts, SpanFacts, StepFacts, WorkerFacts
from otel_rl.records import (
    CONSOLE,
    CONSOLE_COLUMNS,
    Attempt,
    Description,
    Device,
    ExperimentKey,
    ExperimentStatus,
    KeySpec,
    Row,
    SpanRecord,
    Table,
    Value,
    WorkerFailure,
)
from otel_rl.semconv import names
from otel_rl.semconv.spec import STEP_SPAN

S = 1_000_000_000
T0 = 1_700_000_000 * S

HOSTILE = (
    "<script>hacked=1</script><img src=x onerror=hacked=1><a href=javascript:hacked=1>"
    "\u202eRTL" + "x" * 10_000
)

REWARD = KeySpec("trainer/reward/mean", names.RL_REWARD_MEAN, "trainer", unit="1", axis="step")
LOSS = KeySpec("trainer/loss", names.RL_TRAIN_LOSS, "trainer", unit="1", axis="step")
STEP = KeySpec(
    "trainer/iteration/duration", names.RL_ITERATION_DURATION, "trainer", unit="s", axis="step"
)
GRPO = ExperimentKey("grpo", "1")
KEYS = (REWARD, LOSS, STEP)

MEASURED = "trainer/batch_time"
EVALUATED = "val-core/acc"


@dataclass(frozen=True)
class LookedAt:
    """A run to be written.

    Attributes:
        key: Its names.
        workers: Trainers.
        steps: From 1 on.
        slow: Number of a trainer that takes four times as long; None for none.
        slow_from: First step in which it does.
        slow_step: Step in which all take four times as long; None for none.
        keys: Further keys, each with a value in each step.
        phases: Keys of a phase each, with its seconds in each step.
        named: Further keys, with the names that the program gives them.
        scales: Of those, the factors from the program's values, where not 1.
        samples: Rollouts, as fields.
        status: Of the run.
        diverges_at: Step from which reward and loss are NaN; None for none.
        config: Settings of the program.
        tags: Of the run.
        machines: Of its trainers, each with one GPU.
        level: Added to its reward.
        has_phases: Whether the times are of a phase; else they are measurements of ``MEASURED``.
        console: Lines of workers, as (worker, stream, text).
        failures: Of workers, in the step of each.
        attempts: After the first.
        new_weights: Steps after which generators have new weights; None if nobody tells.
        saves: Steps after which there are a checkpoint and an evaluation; None for neither.
        has_spans: Whether the spans of the steps are there.
        has_waits: Whether the second half of each of them waits for others.
    """

    key: ExperimentKey = GRPO
    workers: int = 4
    steps: int = 20
    slow: int | None = None
    slow_from: int = 0
    slow_step: int | None = None
    keys: Sequence[str] = ()
    phases: Sequence[str] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Mapping[str, str | float]] = ()
    status: ExperimentStatus = ExperimentStatus.COMPLETE
    diverges_at: int | None = None
    config: Mapping[str, Value] = field(default_factory=dict)
    tags: Sequence[str] = ()
    machines: Sequence[str] = ()
    level: float = 0.0
    has_phases: bool = True
    has_spans: bool = False
    has_waits: bool = False
    console: Sequence[tuple[str, str, str]] = ()
    failures: Sequence[WorkerFailure] = ()
    attempts: Sequence[Attempt] = ()
    new_weights: int | None = None
    saves: int | None = None


def write_run(directory: Path, run: LookedAt, *, now_ns: int = T0) -> None:
    """Add a run to the journal of a directory, as if it had ended at a time."""
    journal = SqliteJournal(directory)
    try:
        store = RunStore(journal, clock_ns=lambda: now_ns)
        own = [KeySpec(key, key, "trainer", axis="step") for key in run.keys]
        own += [
            KeySpec(
                key,
                name,
                key.partition("/")[0],
                axis="step",
                own_name=name,
                own_scale=run.scales.get(key, 1.0),
            )
            for key, name in run.named.items()
        ]
        own += [
            KeySpec(
                *(key, names.RL_PHASE_DURATION, "trainer"),
                ((names.RL_PHASE, key.rpartition("/")[2]),),
                unit="s",
                axis="step",
            )
            for key in run.phases
        ]
        keys = encode_keys([*KEYS, *own])
        description = Description(
            status=run.status,
            config=run.config,
            tags=run.tags,
            attempts=run.attempts,
            hosts={host: ["trainer"] for host in run.machines},
            devices={
                f"gpu/{host}/gpu0": Device(host, host, "gpu0", model="", workers=())
                for host in run.machines
            },
        )
        # In one transaction, for the sake of slow disks.
        store.commit(
            [
                Commit(
                    run.key,
                    [_row(run, number, step, facts.time_ns)],
                    number + 1,
                    b"",
                    description=description if number == 0 else None,
                    added={
                        Log.HISTORY: (facts.time_ns, facts.encode()),
                        Log.KEYS: (0, keys) if number == 0 else None,
                        Log.SPANS: _spans(run, step, facts) if run.has_spans else None,
                        Log.ROLLOUTS: _rollouts(run, number, facts.time_ns),
                    },
                    step=step,
                )
                for number, (step, facts) in enumerate(_history(run, now_ns))
            ]
        )
    finally:
        journal.close()


def _rollouts(run: LookedAt, number: int, time_ns: int) -> tuple[int, bytes] | None:
    samples = [one for place, one in enumerate(run.samples) if place % run.steps == number]
    finished = []
    for one in samples:
        identity = identity_of(one)
        finished.append(Finished(head_of(one, identity, None, time_ns, "reward/rollouts", ""), one))
    return (time_ns, encoded(finished)) if finished else None


def _spans(run: LookedAt, step: int, facts: Facts) -> Appended:
    begun_ns = T0 + 10 * step * S  # steps do not overlap
    return span_log(
        [
            SpanRecord(
                f"{step}.{worker}.{phase}".encode().rjust(24, b"0"),
                *(None, (), "trainer", str(worker), "host"),
                *(begun_ns, begun_ns + int(of.total_s * S), phase or STEP_SPAN, phase, "compute"),
                step=step,
            )
            for worker, of in enumerate(facts.spans)
            for phase in ("", "train")
        ]
        + [
            # Whoever has less work waits in it for the slowest.
            SpanRecord(
                f"{step}.{worker}.wait".encode().rjust(24, b"0"),
                *(None, (), "trainer", str(worker), "host"),
                *(begun_ns + int(of.total_s * S / 2), begun_ns + int(of.total_s * S)),
                *("param_sync", "param_sync", "sync"),
                step=step,
            )
            for worker, of in enumerate(facts.spans)
            if run.has_waits
        ]
    )


def _row(run: LookedAt, number: int, step: int, time_ns: int) -> Row:
    samples = [one for place, one in enumerate(run.samples) if place % run.steps == number]
    lines: list[list[Value]] = [
        [place, time_ns, *one]
        for place, one in enumerate(run.console)
        if place * run.steps // len(run.console) == number
    ]
    console = {CONSOLE: Table([*CONSOLE_COLUMNS], lines)} if lines else {}
    if not samples:
        return Row(number, step, time_ns, {"trainer/loss": 1 / step}, tables=console)
    columns = list(dict.fromkeys(column for one in samples for column in one))
    cells = [[one.get(column) for column in columns] for one in samples]
    rollouts = {"reward/rollouts": Table(columns, cells)}
    return Row(number, step, time_ns, tables={**rollouts, **console})


def _history(run: LookedAt, now_ns: int) -> Iterator[tuple[int, Facts]]:
    noise = random.Random(1)
    for step in range(1, run.steps + 1):
        time_ns = now_ns - (run.steps - step) * S
        seconds = [
            (4.0 if _is_slow(run, worker, step) else 1.0) + 0.1 * noise.random()
            for worker in range(run.workers)
        ]
        lost = math.nan if run.diverges_at and step >= run.diverges_at else 0.0
        values = {
            REWARD.key: 1 - 1 / step + run.level + lost,
            LOSS.key: 1 / step + lost,
            STEP.key: max(seconds),
            **{key: noise.random() + lost for key in (*run.keys, *run.phases, *run.named)},
            **({EVALUATED: 1 - 1 / step} if run.saves and step % run.saves == 0 else {}),
            **({"generator/policy/version": step // run.new_weights} if run.new_weights else {}),
        }
        slowest = seconds.index(max(seconds))
        path = ("trainer", "train", f"trainer/{slowest}", max(seconds))
        yield (
            step,
            Facts(
                time_ns,
                step,
                rows=[RowFacts(step, time_ns, values)],
                steps=[StepFacts(step, time_ns, [path], [path], [], f"{step:032x}")],
                workers={
                    **({} if run.has_phases else _measured(step, seconds)),
                    **{key: [_of_one(step, values[key])] for key in run.named},
                },
                spans=[
                    SpanFacts(
                        *(step, "trainer", "train", f"trainer/{worker}"),
                        is_wait=False,
                        spans=1,
                        total_s=took_s,
                        longest_s=took_s,
                        failed=0,
                    )
                    for worker, took_s in enumerate(seconds)
                    if run.has_phases
                ]
                + [
                    SpanFacts(step, "trainer", "checkpoint", "trainer/0", False, 1, 0.2, 0.2, 0)
                    for _ in range(run.saves is not None and step % run.saves == 0)
                ],
                failures=[one for one in run.failures if one.step == step],
                status=run.status,
            ),
        )


def _is_slow(run: LookedAt, worker: int, step: int) -> bool:
    return (worker == run.slow and step >= run.slow_from) or step == run.slow_step


def _of_one(step: int, value: float) -> WorkerFacts:
    odd = not math.isfinite(value)
    return WorkerFacts("trainer/0", step, int(not odd), 0.0 if odd else value, int(odd))


def _measured(step: int, seconds: Sequence[float]) -> dict[str, list[WorkerFacts]]:
    """Two keys of all workers: in the first one all are alike."""
    return {
        key: [
            WorkerFacts(f"trainer/{worker}", step, 2, 2 * value, 0)
            for worker, value in enumerate(values)
        ]
        for key, values in ((LOSS.key, [1 / step] * len(seconds)), (MEASURED, seconds))
    }
