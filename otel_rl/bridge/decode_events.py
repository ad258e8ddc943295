"""One accepted batch of log events to what is said of the run, of workers, and of rollouts.

The door has left out all other log records. The events, their attributes and their bodies are those
of the registry.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.otlp.attributes import event_name, plain, step_of
from otel_rl.bridge.otlp.sender import sender_of
from otel_rl.records import (
    PART,
    Announcement,
    Batch,
    Decoded,
    Departure,
    ExperimentStatus,
    Export,
    TextSample,
    Value,
    Worker,
)
from otel_rl.semconv import names

__all__ = ["decode_events", "event_parts"]

_DEFAULT_TABLE = "samples"

_FAILED = "failed"


def decode_events(batch: Batch) -> Decoded:
    """What the events of ``batch`` say, in the order of the request.

    Events without a time get the batch's ``received_ns``.
    """
    *parts, last = event_parts(batch)
    return replace(last, samples=[one for part in (*parts, last) for one in part.samples])


def event_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """The same in parts, see ``decode_parts``."""
    announcements: list[Announcement] = []
    departures: list[Departure] = []
    samples: list[TextSample] = []
    size = 0
    exports: dict[Worker, Export] = {}
    for resource_logs in ExportLogsServiceRequest.FromString(batch.payload).resource_logs:
        sender = sender_of(resource_logs.resource.SerializeToString())
        worker = sender.worker
        # A lease, but no word about how far the worker's measurements have come.
        exports[worker] = Export(worker, 0, sender.exact)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                size += 1
                if size >= most:
                    yield Decoded((), (), samples, has_more=True)
                    samples, size = [], 0
                said = {pair.key: plain(pair.value) for pair in record.attributes}
                time_ns = (
                    record.time_unix_nano or record.observed_time_unix_nano or batch.received_ns
                )
                match event_name(record):
                    case names.RL_EXPERIMENT_START | names.RL_EXPERIMENT_END as event:
                        announcements.append(_announcement(event, said, time_ns))
                    case names.RL_WORKER_END:
                        failed = said.get(names.RL_WORKER_STATUS) == _FAILED
                        departures.append(Departure(worker, time_ns, failed))
                    case names.RL_ROLLOUT_SAMPLE:
                        samples.append(_sample(record, said, worker, time_ns))
                    case _:
                        pass  # left out at the door
    yield Decoded(
        (), [*exports.values()], samples, announcements=announcements, departures=departures
    )


def _announcement(event: str, said: Mapping[str, Value], time_ns: int) -> Announcement:
    if event == names.RL_EXPERIMENT_END:
        return Announcement(time_ns, _status(said.get(names.RL_EXPERIMENT_STATUS)))
    config = said.get(names.RL_EXPERIMENT_CONFIG)
    return Announcement(
        time_ns,
        ExperimentStatus.RUNNING,
        config if isinstance(config, Mapping) else {},
        _text(said.get(names.RL_EXPERIMENT_NOTES)),
        _texts(said.get(names.RL_EXPERIMENT_TAGS)),
        _text(said.get(names.RL_EXPERIMENT_GROUP)),
        _text(said.get(names.RL_EXPERIMENT_JOB_TYPE)),
    )


def _sample(
    record: LogRecord, said: Mapping[str, Value], worker: Worker, time_ns: int
) -> TextSample:
    body = plain(record.body)
    return TextSample(
        worker,
        _text(said.get(names.RL_SAMPLE_TABLE)) or _DEFAULT_TABLE,
        step_of(record.attributes),
        time_ns,
        body if isinstance(body, Mapping) else {"text": body},
        _digest(record, said.get(names.LOG_RECORD_UID), worker),
    )


def _digest(record: LogRecord, uid: Value, worker: Worker) -> int:
    """Tells a record from all others: by its own id, or by all that it says."""
    if isinstance(uid, str) and uid:
        identity = uid.encode(errors="replace")
    else:
        # A collector may set the time of observation when it has none.
        own = LogRecord()
        own.CopyFrom(record)
        own.ClearField("observed_time_unix_nano")
        identity = worker.instance.encode(errors="replace") + own.SerializeToString(
            deterministic=True
        )
    return int.from_bytes(blake2b(identity, digest_size=8).digest()) >> 1


def _status(said: Value) -> ExperimentStatus:
    try:
        return ExperimentStatus(str(said).lower())
    except ValueError:
        return ExperimentStatus.COMPLETE


def _text(said: Value) -> str | None:
    return said if isinstance(said, str) else None


def _texts(said: Value) -> Sequence[str]:
    if isinstance(said, str) or not isinstance(said, Sequence):
        return ()
    return [one for one in said if isinstance(one, str)]
