"""Who sends, as the resource of a request says it."""

from dataclasses import dataclass
from functools import lru_cache

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import integer, text_pairs
from otel_rl.records import Worker
from otel_rl.semconv import names

__all__ = ["Sender", "sender_of"]

_DISTRO = "otel_rl"

_DEFAULT_ROLE = "worker"

# Bounds of two caches, for a few thousand processes: together they hold 16 MiB of what was sent.
_MAX_SENDERS, _MAX_LONG_SENDERS = 1 << 12, 1 << 8
_LONG_BYTES = 2 << 10  # most resources have a few hundred, those of Kubernetes up to twice so many


@dataclass(frozen=True, slots=True, eq=False)
class Sender:
    """A resource as the bridge reads it. Equal by identity, so that it is a cheap key.

    Attributes:
        worker: The process.
        host: ``host.name``, possibly empty.
        exact: Whether it is one of otel_rl's own: its exemplars are complete, and the points of a
            series that have a start tile time.
        knows_starts: Whether its cumulative points are an SDK's own, which knows since when it
            counts. A Collector that scrapes does not, and puts its first look there.
    """

    worker: Worker
    host: str
    exact: bool
    knows_starts: bool


def sender_of(serialized: bytes) -> Sender:
    """The sender that a serialized ``Resource`` describes; the same object each time, mostly."""
    return (_sender if len(serialized) <= _LONG_BYTES else _long_sender)(serialized)


def _read_sender(serialized: bytes) -> Sender:
    attributes = dict(text_pairs(Resource.FromString(serialized).attributes))
    service = attributes.get("service.name", "")
    role = attributes.get(names.RL_WORKER_ROLE) or (
        _DEFAULT_ROLE if not service or service.startswith("unknown_service") else service
    )
    own = attributes.get("service.instance.id") or "/".join(
        attributes.get(name, "") for name in ("host.name", "process.pid", names.RL_WORKER_INDEX)
    )
    # By OpenTelemetry's rules an instance's id is unique within its service only.
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
        exact=attributes.get("telemetry.distro.name") == _DISTRO,
        # What a scraped SDK says of itself may stand in the resource, too, beside where it is.
        knows_starts="telemetry.sdk.name" in attributes and "url.scheme" not in attributes,
    )


_sender = lru_cache(maxsize=_MAX_SENDERS)(_read_sender)
_long_sender = lru_cache(maxsize=_MAX_LONG_SENDERS)(_read_sender)
