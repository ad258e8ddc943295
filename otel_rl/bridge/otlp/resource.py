"""Identifies the sender of a request by its resource."""

from dataclasses import dataclass
from functools import lru_cache

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import integer, text_pairs
from otel_rl.records import Worker
from otel_rl.semconv import names
from otel_rl.semconv.foreign import own_identity

_DISTRO = "otel_rl"

_DEFAULT_ROLE = "worker"

_PID = "process.pid"

# Of the Prometheus receiver.
_SCRAPED = "url.scheme"

# Bounds of two caches, for a few thousand processes: together they hold 16 MiB of received data.
_MAX_SENDERS, _MAX_LONG_SENDERS = 1 << 12, 1 << 8
_LONG_BYTES = 2 << 10  # most resources have a few hundred, those of Kubernetes up to this
_MAX_BYTES = 32 << 10  # its unknown fields are not limited; such a resource is read each time


@dataclass(frozen=True, slots=True, eq=False)
class Sender:
    """A resource as the bridge reads it. Senders are equal by identity, so they are cheap keys.

    Attributes:
        host: ``host.name``, possibly empty.
        pid: ``process.pid``; None without one.
        exact: Whether the sender is a worker of otel_rl: its exemplars are complete, and the points
            of a series that have a start tile time.
        knows_starts: Whether cumulative points are an SDK's own, with true starts. A Collector that
            scrapes uses the time of its first scrape.
        is_scraped: Whether a Collector scrapes the sender.
    """

    worker: Worker
    host: str
    pid: int | None
    exact: bool
    knows_starts: bool
    is_scraped: bool


def sender_of(serialized: bytes) -> Sender:
    """Return the sender of a serialized ``Resource``, mostly the same object each time."""
    if len(serialized) > _MAX_BYTES:
        return _read_sender(serialized)
    return (_sender if len(serialized) <= _LONG_BYTES else _long_sender)(serialized)


def _read_sender(serialized: bytes) -> Sender:
    attributes = dict(text_pairs(Resource.FromString(serialized).attributes))
    exact = attributes.get("telemetry.distro.name") == _DISTRO
    identity = {} if exact else own_identity(attributes)
    attributes |= identity
    service = attributes.get("service.name", "")
    role = attributes.get(names.RL_WORKER_ROLE) or (
        _DEFAULT_ROLE if not service or service.startswith("unknown_service") else service
    )
    own = attributes.get("service.instance.id") or "/".join(
        attributes.get(name, "") for name in ("host.name", _PID, names.RL_WORKER_INDEX)
    )
    if identity:  # its ranks are numbered in each group of workers
        own = "/".join((role, own, attributes.get("host.name", ""), attributes.get(_PID, "")))
    # In OpenTelemetry an instance's id is unique within its service only.
    instance = "/".join((attributes.get("service.namespace", ""), service, own))
    worker = Worker(
        role=role,
        instance=instance,
        index=integer(attributes.get(names.RL_WORKER_INDEX)),
        count=integer(attributes.get(names.RL_WORKER_COUNT)),
    )
    return Sender(
        worker,
        host=attributes.get("host.name", ""),
        pid=integer(attributes.get(_PID)),
        exact=exact,
        # The resource of a scraped SDK may carry the SDK's own attributes beside the scrape's.
        knows_starts="telemetry.sdk.name" in attributes and _SCRAPED not in attributes,
        is_scraped=_SCRAPED in attributes,
    )


_sender = lru_cache(maxsize=_MAX_SENDERS)(_read_sender)
_long_sender = lru_cache(maxsize=_MAX_LONG_SENDERS)(_read_sender)
