"""Decodes an accepted batch of log events into run metadata, worker states and rollouts.

Other log records were removed on receipt. Events, attributes and bodies follow the registry.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_rl.bridge.otlp.attributes import event_name, plain, step_of
from otel_rl.bridge.otlp.identities import Sender, identified
from otel_rl.records import (
    CONSOLE,
    PART,
    PROGRESS,
    STACKS,
    Announcement,
    Batch,
    Decoded,
    Departure,
    ExperimentStatus,
    Export,
    Provenance,
    TextSample,
    Value,
    Worker,
)
from otel_rl.semconv import names

_DEFAULT_TABLE = "samples"

_TRACE_ID = "trace_id"

_FAILED = "failed"

# A worker sends shorter ones; it may be another SDK's.
_MAX_TYPE_CHARS = 256
_MAX_MESSAGE_CHARS = 1_024


def event_parts(batch: Batch, most: int = PART) -> Iterator[Decoded]:
    """Decode the events of ``batch``, in the order of the request, in parts of about ``most``.

    Events without a time get the batch's ``received_ns``.
    """
    announcements: list[Announcement] = []
    departures: list[Departure] = []
    samples: list[TextSample] = []
    size = 0
    exports: dict[Worker, Export] = {}
    for resource_logs in ExportLogsServiceRequest.FromString(batch.payload).resource_logs:
        sender = identified(resource_logs.resource.SerializeToString()).sender
        worker = sender.worker
        # An event renews the worker's lease, but does not show how far its measurements have come.
        exports[worker] = Export(worker, 0, sender.exact, host=sender.host, pid=sender.pid)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                size += 1
                if size >= most:
                    yield Decoded((), (), samples, has_more=True)
                    samples, size = [], 0
                attributes = {pair.key: plain(pair.value) for pair in record.attributes}
                time_ns = (
                    record.time_unix_nano or record.observed_time_unix_nano or batch.received_ns
                )
                match event_name(record):
                    case names.RL_EXPERIMENT_START | names.RL_EXPERIMENT_END as event:
                        announcements.append(_announcement(event, attributes, time_ns))
                    case names.RL_WORKER_START:
                        started = _provenance(attributes, sender, time_ns)
                        announcements.append(Announcement(time_ns, provenance=started))
                    case names.RL_WORKER_CONSOLE:
                        samples.append(_console(record, attributes, worker, time_ns))
                    case names.RL_WORKER_END | names.RL_WORKER_ERROR as event:
                        departures.append(_departure(event, record, attributes, worker, time_ns))
                    case names.RL_WORKER_STACK:
                        named = {**attributes, names.RL_SAMPLE_TABLE: STACKS}
                        samples.append(_sample(record, named, worker, time_ns))
                    case names.RL_ROLLOUT_PROGRESS:
                        named = {**attributes, names.RL_SAMPLE_TABLE: PROGRESS}
                        samples.append(_sample(record, named, worker, time_ns))
                    case names.RL_ROLLOUT_SAMPLE:
                        samples.append(_sample(record, attributes, worker, time_ns))
                    case _:
                        pass  # removed on receipt
    yield Decoded(
        (), [*exports.values()], samples, announcements=announcements, departures=departures
    )


def _departure(
    event: str,
    record: LogRecord,
    attributes: Mapping[str, Value],
    worker: Worker,
    time_ns: int,
) -> Departure:
    has_ended = event == names.RL_WORKER_END
    if has_ended and attributes.get(names.RL_WORKER_STATUS) != _FAILED:
        return Departure(worker, time_ns, failed=False)
    return Departure(
        worker,
        time_ns,
        failed=True,
        error=(_text(attributes.get(names.ERROR_TYPE)) or "")[:_MAX_TYPE_CHARS],
        message=(_text(attributes.get(names.EXCEPTION_MESSAGE)) or "")[:_MAX_MESSAGE_CHARS],
        step=step_of(record.attributes),
        has_ended=has_ended,
    )


def _announcement(event: str, attributes: Mapping[str, Value], time_ns: int) -> Announcement:
    if event == names.RL_EXPERIMENT_END:
        return Announcement(time_ns, _status(attributes.get(names.RL_EXPERIMENT_STATUS)))
    return Announcement(
        time_ns,
        ExperimentStatus.RUNNING,
        _mapping(attributes.get(names.RL_EXPERIMENT_CONFIG)),
        _text(attributes.get(names.RL_EXPERIMENT_NOTES)),
        _texts(attributes.get(names.RL_EXPERIMENT_TAGS)),
        _text(attributes.get(names.RL_EXPERIMENT_GROUP)),
        _text(attributes.get(names.RL_EXPERIMENT_JOB_TYPE)),
        defaults=_mapping(attributes.get(names.RL_EXPERIMENT_CONFIG_DEFAULTS)),
        project=_text(attributes.get(names.RL_EXPERIMENT_PROJECT)),
        entity=_text(attributes.get(names.RL_EXPERIMENT_ENTITY)),
        mode=_text(attributes.get(names.RL_EXPERIMENT_MODE)),
        name=_text(attributes.get(names.RL_EXPERIMENT_DISPLAY_NAME)),
        own_run=_text(attributes.get(names.RL_TRACKER_WANDB_RUN_PATH)),
    )


def _mapping(value: Value | None) -> Mapping[str, Value]:
    return value if isinstance(value, Mapping) else {}


def _provenance(attributes: Mapping[str, Value], sender: Sender, time_ns: int) -> Provenance:
    def text(key: str) -> str:
        return _text(attributes.get(key)) or ""

    return Provenance(
        role=sender.worker.role,
        index=-1 if sender.worker.index is None else sender.worker.index,
        host=sender.host,
        command=tuple(_texts(attributes.get(names.PROCESS_COMMAND_ARGS))),
        executable=text(names.PROCESS_EXECUTABLE_PATH),
        runtime=text(names.PROCESS_RUNTIME_VERSION),
        system=text(names.OS_DESCRIPTION),
        commit=text(names.VCS_REF_HEAD_REVISION),
        repository=text(names.VCS_REPOSITORY_URL_FULL),
        diff=text(names.RL_WORKER_DIFF),
        packages=tuple(_texts(attributes.get(names.RL_WORKER_PACKAGES))),
        time_ns=time_ns,
    )


def _sample(
    record: LogRecord, attributes: Mapping[str, Value], worker: Worker, time_ns: int
) -> TextSample:
    body = plain(record.body)
    fields = dict(body) if isinstance(body, Mapping) else {"text": body}
    if record.trace_id:
        fields.setdefault(_TRACE_ID, record.trace_id.hex())
    return TextSample(
        worker,
        _text(attributes.get(names.RL_SAMPLE_TABLE)) or _DEFAULT_TABLE,
        step_of(record.attributes),
        time_ns,
        fields,
        _digest(record, attributes.get(names.LOG_RECORD_UID), worker),
    )


def _console(
    record: LogRecord, attributes: Mapping[str, Value], worker: Worker, time_ns: int
) -> TextSample:
    fields = {
        names.LOG_IOSTREAM: _text(attributes.get(names.LOG_IOSTREAM)) or "stdout",
        "text": record.body.string_value,
    }
    uid = attributes.get(names.LOG_RECORD_UID)
    return TextSample(worker, CONSOLE, None, time_ns, fields, _digest(record, uid, worker))


def _digest(record: LogRecord, uid: Value, worker: Worker) -> int:
    """Return a digest that identifies a record: its own id, or its whole content."""
    if isinstance(uid, str) and uid:
        identity = uid.encode(errors="replace")
    else:
        # A collector may set the time of observation when it is absent.
        own = LogRecord()
        own.CopyFrom(record)
        own.ClearField("observed_time_unix_nano")
        identity = worker.instance.encode(errors="replace") + own.SerializeToString(
            deterministic=True
        )
    return int.from_bytes(blake2b(identity, digest_size=8).digest()) >> 1


def _status(value: Value) -> ExperimentStatus:
    try:
        return ExperimentStatus(str(value).lower())
    except ValueError:
        return ExperimentStatus.COMPLETE


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Value) -> Sequence[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return ()
    return [one for one in value if isinstance(one, str)]
