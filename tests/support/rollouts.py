"""Rollouts for tests: as workers report them, and through the writers of a journal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.rows.rollouts import Rollouts
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.records import Batch, ExperimentKey, TextSample, Value, Worker
from otel_rl.signals import Signal
from tests.support.otlp_requests import event, logs_request

GENERATOR = Worker("generator", "generator-0", 0)

_AT_ONCE = 512  # rollouts of a commit


def progress(
    key: ExperimentKey, time_ns: int, of: int = 0, at: int | None = None, **fields: Any
) -> Batch:
    """What a generator reports of a rollout in flight, at a step."""
    told = {"begun_ns": time_ns, "progress_ns": time_ns, "stage": "generate", **fields}
    return _batch(key, "rl.rollout.progress", told, time_ns, of, at)


def sample(
    key: ExperimentKey, time_ns: int, of: int = 0, at: int | None = None, **fields: Any
) -> Batch:
    """What a generator reports of a rollout that has ended, at a step."""
    return _batch(key, "rl.rollout.sample", fields, time_ns, of, at)


def _batch(
    key: ExperimentKey,
    name: str,
    fields: Mapping[str, Value],
    time_ns: int,
    of: int,
    at: int | None,
) -> Batch:
    resource: Mapping[str, Value] = {
        "rl.experiment.name": key.experiment,
        "rl.experiment.trial": key.trial,
        "rl.worker.role": "generator",
        "rl.worker.index": of,
        "service.instance.id": f"generator-{of}",
    }
    attributes = {} if at is None else {"rl.loop.iteration": at}
    record = event(name, attributes, fields, time_ns=time_ns)
    request = logs_request(record, resource=resource)
    return Batch(key, Signal.LOGS, request.SerializeToString(), time_ns)


def write_rollouts(
    directory: Path,
    key: ExperimentKey,
    some: Sequence[Mapping[str, Value]],
    now_ns: int,
    table: str = "generator/samples",
) -> None:
    """Add finished rollouts to the journal of a directory as a bridge does, each with its step.

    Without a table they are the bridge's own word on rollouts of lost workers.
    """
    rollouts, state = Rollouts(), WorkerState("generator", "0")
    commits = []
    for at in range(0, len(some), _AT_ONCE):
        for place, fields in enumerate(some[at : at + _AT_ONCE], at):
            step = fields.get("step")
            told = TextSample(
                *(GENERATOR, "samples", step if isinstance(step, int) else None),
                *(now_ns + place, fields, place),
            )
            rollouts.finish(told, state, table)
        part = rollouts.take_finished(now_ns + at, 1 << 30)
        commits.append(Commit(key, [], 0, b"", added={Log.ROLLOUTS: part}))
    journal = SqliteJournal(directory)
    try:
        RunStore(journal, clock_ns=lambda: now_ns).commit(commits)
    finally:
        journal.close()
