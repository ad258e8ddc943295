"""Validates metrics requests of known shapes without parsing them (docs/adr/0020).

The outcome of the rules depends on a request's resources, its shape, and the times in it. Resources
and shapes that ``validate`` accepted as they are were checked once; here the times are. Every other
request gets None, and goes the usual way: nothing is refused here.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.validation.rules import Rules
from otel_rl.bridge.ingest.validation.sanitize import Admission
from otel_rl.bridge.ingest.validation.validate import Validated, validate
from otel_rl.bridge.otlp.attributes import experiment_of
from otel_rl.bridge.otlp.shapes import (
    BodyShape,
    ResourcePart,
    ShapeCache,
    resource_parts,
)
from otel_rl.errors import RequestError
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.semconv import names

__all__ = ["KnownShapes"]

_MAX_REQUEST_BYTES: Final = 1 << 20
"""Longer requests are parsed under the bounds on memory."""

_MIN_ITEM_BYTES: Final = 2  # a tag and a length of 0

_MAX_RESOURCES: Final = 1 << 12
_MAX_RESOURCE_BYTES: Final = 2 << 10
"""Together 8 MiB of received data: most resources have a few hundred bytes."""


class KnownShapes:
    """Resources and shapes that were accepted before. Any thread may call any method.

    Args:
        limits: Bounds on requests.
    """

    def __init__(self, limits: ReceiveLimits) -> None:
        self._limits = limits
        # Nothing shorter can hold more messages or points than the limits.
        most = min(limits.max_messages_per_request, limits.max_points_per_request)
        self._max_bytes = min(_MAX_REQUEST_BYTES, most * _MIN_ITEM_BYTES - 1)
        self._bodies = ShapeCache()
        self._experiment = lru_cache(maxsize=_MAX_RESOURCES)(self._read_experiment)

    def validate(self, payload: bytes, now_ns: int, admission: Admission) -> Validated | None:
        """Validate a request of known resources and shapes.

        Args:
            payload: As protobuf.
            now_ns: The bridge's own clock.
            admission: See ``Sanitizer``.

        Returns:
            The same as ``validate``; None if that must decide.
        """
        parts = self._parts(payload)
        if not parts:
            return None
        rules = Rules(self._limits, now_ns)
        keys: list[ExperimentKey] = []
        accepted = 0
        for part in parts:
            if part.resource_end - part.resource > _MAX_RESOURCE_BYTES:
                return None
            key = self._experiment(payload[part.resource : part.resource_end])
            body = payload[part.body : part.body_end]
            shape = self._bodies.find(body) if key is not None else None
            if key is None or shape is None or not rules.are_near(*shape.time_range_ns(body)):
                return None
            keys.append(key)
            accepted += shape.points
        if any(admission(key) is not None for key in dict.fromkeys(keys)):
            return None
        return Validated(_batches(payload, parts, keys, now_ns), accepted)

    def learn(self, payload: bytes, now_ns: int) -> None:
        """Learn from a request that was accepted, whole or in part."""
        for part in self._parts(payload) or ():
            body = payload[part.body : part.body_end]
            if self._bodies.find(body) is None:
                self._bodies.learn(body, partial(self._is_sound, body, now_ns))

    def _parts(self, payload: bytes) -> Sequence[ResourcePart] | None:
        return resource_parts(payload) if len(payload) <= self._max_bytes else None

    def _read_experiment(self, serialized: bytes) -> ExperimentKey | None:
        """Return the experiment of a resource that no rule refuses as it is; else None."""
        try:
            resource = Resource.FromString(serialized)
        except DecodeError:
            return None
        if Rules(self._limits, 0).resource(resource) is not None:
            return None
        if not any(pair.key == names.RL_EXPERIMENT_NAME for pair in resource.attributes):
            return None  # the default one is added to it
        return experiment_of(resource.attributes)

    def _is_sound(self, body: bytes, now_ns: int, shape: BodyShape) -> bool:
        """Return whether ``validate`` accepts a body unchanged, with any resource."""
        resource = Resource()
        resource.attributes.add(key=names.RL_EXPERIMENT_NAME).value.string_value = "any"
        serialized = resource.SerializeToString()
        part = b"\x0a%c%b%b" % (len(serialized), serialized, body)
        payload = _delimited(part)
        try:
            found = validate(Signal.METRICS, payload, self._limits, now_ns)
        except RequestError:
            return False
        return (
            found.accepted == shape.points
            and not found.message
            and not found.exemplars_refused
            and [batch.payload for batch in found.batches] == [payload]
        )


def _batches(
    payload: bytes, parts: Sequence[ResourcePart], keys: Sequence[ExperimentKey], now_ns: int
) -> Sequence[Batch]:
    """Split a request by experiment, as ``validate`` does."""
    if len(set(keys)) == 1:
        return [Batch(keys[0], Signal.METRICS, payload, now_ns)]
    order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    by_key = sorted(zip(keys, parts, strict=True), key=lambda pair: order[pair[0]])
    return [
        Batch(key, Signal.METRICS, b"".join(payload[p.start : p.end] for _, p in of_key), now_ns)
        for key, of_key in groupby(by_key, key=lambda pair: pair[0])
    ]


def _delimited(part: bytes) -> bytes:
    """Return a request of one part."""
    head, length = bytearray(b"\x0a"), len(part)
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + part
