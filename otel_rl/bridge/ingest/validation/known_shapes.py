"""Validates metrics requests of known shapes without parsing them (docs/adr/0020).

The outcome of the rules depends on a request's resources, its shape, and the times in it. Resources
and shapes that ``validate`` accepted as they are were checked once; here the times are, and each
histogram. Every other request gets None, and goes the usual way: nothing is refused here.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Final, NamedTuple
from weakref import ref

from google.protobuf.message import DecodeError
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.ingest.limits import ReceiveLimits
from otel_rl.bridge.ingest.parsing.preparse import MessageCounts, contents
from otel_rl.bridge.ingest.refused_items import Refusals
from otel_rl.bridge.ingest.validation.rules import Rules, TimeBounds
from otel_rl.bridge.ingest.validation.sanitize import Admission, Sanitizer
from otel_rl.bridge.ingest.validation.validate import Validated, validate
from otel_rl.bridge.otlp.attributes import experiment_of
from otel_rl.bridge.otlp.raw_exemplars import MetricsView, MetricView
from otel_rl.bridge.otlp.shapes import (
    HISTOGRAMS,
    BodyShape,
    CutBody,
    Cuts,
    Histogram,
    ResourcePart,
    ShapeCache,
    each_part,
)
from otel_rl.errors import MalformedRequest, RequestError, RequestTooLarge
from otel_rl.records import Batch, ExperimentKey, Signal
from otel_rl.semconv import names

__all__ = ["KnownShapes", "SentShape"]

_MAX_REQUEST_BYTES: Final = 8 << 20
"""Twice a gateway's largest. Longer requests are parsed under the bounds on memory."""

_MIN_ITEM_BYTES: Final = 2  # a tag and a length of 0

_PART: Final = MetricsView().resource_metrics.add().DESCRIPTOR

_SCOPE_METRICS: Final = MetricsView().resource_metrics.add().scope_metrics.add().DESCRIPTOR

_MAX_COUNTED: Final = 1 << 12
"""Shapes whose content is known; counting it takes as long as parsing."""

_MAX_RESOURCES: Final = 1 << 12
_MAX_RESOURCE_BYTES: Final = 2 << 10
"""Each of two caches has 8 MiB of received data: most resources have a few hundred bytes."""


class _Resource(NamedTuple):
    """Resource that no rule refuses.

    Attributes:
        key: Of its experiment.
        contents: Of its part of a request without the body, see ``MessageCounts``.
    """

    key: ExperimentKey
    contents: Mapping[str, int]


class _KnownBody(NamedTuple):
    """Body of a known shape.

    Attributes:
        shape: Of all but the histograms.
        cut: The body.
        points: Number of its data points.
    """

    shape: BodyShape
    cut: CutBody
    points: int


class SentShape(NamedTuple):
    """Common parts of a request of one resource, without histograms, and of its sender's next one.

    Attributes:
        head: The request up to its body.
        size: Of the request, in bytes.
        key: Of its experiment.
        shape: Of its body, while that is known.
    """

    head: bytes
    size: int
    key: ExperimentKey
    shape: "ref[BodyShape]"


class KnownShapes:
    """Resources and shapes that were accepted before. Any thread may call any method.

    Args:
        limits: Bounds on requests.
    """

    def __init__(self, limits: ReceiveLimits) -> None:
        self._limits = limits
        self._times = TimeBounds.of(limits)
        # Nothing shorter can hold more messages or points than the limits.
        most = min(limits.max_messages_per_request, limits.max_points_per_request)
        self._uncounted_bytes = most * _MIN_ITEM_BYTES - 1
        self._bodies = ShapeCache()
        self._cuts = Cuts()
        self._resource = lru_cache(maxsize=_MAX_RESOURCES)(self._read_resource)
        self._contents: dict[int, Mapping[str, int]] = {}  # of bodies, by the number of the shape

    def validate(self, payload: bytes, now_ns: int, admission: Admission) -> Validated | None:
        """Validate a request of known resources and shapes.

        Args:
            payload: As protobuf.
            now_ns: The bridge's own clock.
            admission: See ``Sanitizer``.

        Returns:
            The same as ``validate``; None if that must decide.
        """
        if len(payload) > _MAX_REQUEST_BYTES:
            return None
        rules = Rules(self._limits, now_ns)
        parts: list[ResourcePart] = []
        keys: list[ExperimentKey] = []
        bodies: list[_KnownBody] = []
        for part in each_part(payload):
            if part is None or part.resource_end - part.resource > _MAX_RESOURCE_BYTES:
                return None
            serialized = payload[part.resource : part.resource_end]
            resource = self._resource(serialized)
            body = payload[part.body : part.body_end]
            known = None if resource is None else self._known(serialized, body, rules, now_ns)
            if resource is None or known is None:
                return None
            parts.append(part)
            keys.append(resource.key)
            bodies.append(known)
        if not parts or not self._is_within_limits(payload, parts, bodies):
            return None
        if any(admission(key) is not None for key in dict.fromkeys(keys)):
            return None
        accepted = sum(body.points for body in bodies)
        return Validated(_batches(payload, parts, keys, now_ns), accepted)

    def sent(self, payload: bytes) -> SentShape | None:
        """Return what the next request may have in common with one that ``validate`` accepts.

        None if it has several resources, histograms, or fields behind its body.
        """
        part = next(each_part(payload), None)
        if part is None or part.body_end != len(payload):
            return None
        resource = self._resource(payload[part.resource : part.resource_end])
        shape = self._bodies.find(payload[part.body :])
        if resource is None or shape is None:
            return None
        return SentShape(payload[: part.body], len(payload), resource.key, ref(shape))

    def validate_next(
        self, sent: SentShape, payload: bytes, now_ns: int, admission: Admission
    ) -> Validated | None:
        """Validate a request as ``validate`` does; None if it is not like one sent before."""
        if len(payload) != sent.size or not payload.startswith(sent.head):
            return None
        body, shape = payload[len(sent.head) :], sent.shape()
        if shape is None or not shape.matches(body) or admission(sent.key) is not None:
            return None
        if not self._times.are_near(now_ns, *shape.time_range_ns(body)):
            return None
        return Validated([Batch(sent.key, Signal.METRICS, payload, now_ns)], shape.points)

    def _known(self, owner: bytes, body: bytes, rules: Rules, now_ns: int) -> _KnownBody | None:
        """Return a body that is accepted as it is; else None.

        Args:
            owner: Its resource.
            body: Without the resource.
            rules: Check the times of its shape.
            now_ns: The bridge's own clock.
        """
        cut: CutBody | None = CutBody(body, ())
        shape = self._bodies.find(body)
        if shape is None:
            cut = self._cuts.again(owner, body)
            shape = None if cut is None else self._bodies.find(cut.rest, cut.cuts)
        if cut is None or shape is None or not rules.are_near(*shape.time_range_ns(cut.rest)):
            return None
        points: int | None = 0
        if cut.histograms:
            # What it would refuse is refused by the one that decides then.
            screen = Sanitizer(self._limits, now_ns, Refusals(""), size_bytes=0)
            points = _accepted_points(cut.histograms, screen)
        return None if points is None else _KnownBody(shape, cut, shape.points + points)

    def learn(self, payload: bytes, now_ns: int) -> None:
        """Learn from a request that was accepted, whole or in part."""
        if len(payload) > _MAX_REQUEST_BYTES:
            return
        for part in each_part(payload):
            if part is None or part.resource_end - part.resource > _MAX_RESOURCE_BYTES:
                return
            owner = payload[part.resource : part.resource_end]
            body, *_ = self._cuts.anew(owner, payload[part.body : part.body_end])
            if self._bodies.find(body) is None:
                self._bodies.learn(body, partial(self._is_sound, body, now_ns))

    def _is_within_limits(
        self, payload: bytes, parts: Sequence[ResourcePart], bodies: Sequence[_KnownBody]
    ) -> bool:
        """Return whether a request has no more messages, points and texts than parsing accepts."""
        if len(payload) <= self._uncounted_bytes:
            return True
        limits = self._limits
        counts = MessageCounts(limits.max_messages_per_request, limits.max_points_per_request)
        try:
            for part, body in zip(parts, bodies, strict=True):
                resource = self._resource(payload[part.resource : part.resource_end])
                of_resource = {} if resource is None else resource.contents
                of_body = self._contents_of(body.shape, body.cut.rest)
                of_histograms = [contents(one.field, _SCOPE_METRICS) for one in body.cut.histograms]
                for found in (of_resource, of_body, *of_histograms):
                    for what, n in found.items():
                        counts.add(what, n)
        except (MalformedRequest, RequestTooLarge):
            return False
        return True

    def _contents_of(self, shape: BodyShape, body: bytes) -> Mapping[str, int]:
        found = self._contents.get(shape.number)
        if found is None:
            if len(self._contents) >= _MAX_COUNTED:
                self._contents.clear()
            found = self._contents[shape.number] = contents(body, _PART)
        return found

    def _read_resource(self, serialized: bytes) -> _Resource | None:
        """Return a resource that no rule refuses as it is; else None."""
        try:
            resource = Resource.FromString(serialized)
            found = contents(_delimited(_delimited(serialized)), MetricsView.DESCRIPTOR)
        except (DecodeError, MalformedRequest):
            return None
        if Rules(self._limits, 0).resource(resource) is not None:
            return None
        if not any(pair.key == names.RL_EXPERIMENT_NAME for pair in resource.attributes):
            return None  # the default one is added to it
        key = experiment_of(resource.attributes)
        if key is None:
            return None
        return _Resource(key, found)

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


def _accepted_points(histograms: Sequence[Histogram], screen: Sanitizer) -> int | None:
    """Return the number of points of histograms; None unless all are accepted as they are."""
    found = 0
    try:
        for one in histograms:
            metric = MetricView.FromString(one.metric)
            kind = metric.WhichOneof("data")
            if kind not in HISTOGRAMS or not screen.accepts(metric):
                return None
            found += len(getattr(metric, kind).data_points)
    except DecodeError:
        return None
    return found


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
