"""Identities of series: found by the bytes that name them, and read once.

Identities are all that is kept of earlier messages. An identity is a resource, a scope, and the
description of a metric with the attributes of its points; the numbers of a request are read anew
each time. The receiving side checks a new identity by its rules, and marks it, so that the identity
is not checked again.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_rl.bridge.otlp.attributes import (
    experiment_of,
    integer,
    step_of,
    team_of,
    text_pairs,
    typed_pairs,
)
from otel_rl.bridge.otlp.device_attributes import at_host
from otel_rl.records import Series, Worker
from otel_rl.semconv import names
from otel_rl.semconv.aliases import scraped_alias
from otel_rl.semconv.foreign import APART, fold, own_identity
from otel_rl.semconv.spec import Instrument, Reduction

STEP: Final = names.RL_LOOP_ITERATION.encode()
"""Is in every serialized attribute that names a step."""

_MAX_BYTES: Final = 96 << 20
"""Memory of all identities, about: those of 4,000 workers with 40 series each."""

_SERIES_BYTES: Final = 400
"""Of a series without its texts, which are as long as the bytes that name it."""

_ATTRIBUTE_BYTES: Final = 270
"""Of an attribute of a series without its texts: its bytes, and its name and value, are objects."""

_RESOURCE_BYTES: Final = 500
"""Of a resource or a scope without its texts."""

_MAX_RESOURCE_BYTES: Final = _MAX_BYTES // 4
"""Memory of the identities of one resource. Beyond it all of them are read anew."""

_MAX_KEY_BYTES: Final = 64 << 10
"""A longer resource or scope, which only its unknown fields make so long, is read each time."""

_MAX_SCOPES: Final = 1 << 8
"""Scopes of a resource."""

_DISTRO: Final = "otel_rl"
_DEFAULT_ROLE: Final = "worker"
_PID: Final = "process.pid"

_SCRAPED: Final = "url.scheme"
"""Attribute of a resource by the Prometheus receiver."""


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


class Identity:
    """Identity of the points of a metric with certain attributes.

    Attributes:
        scale: Factor from the sent values to the registry's unit, for a metric under its program's
            name.
        is_level: Whether a gauge under a program's name is an up-down counter in the registry.
        sound_for: Rules that have accepted the identity; None if none have yet.
    """

    __slots__ = ("is_level", "scale", "series", "sound_for")

    def __init__(self, series: Series, scale: float = 1, *, is_level: bool = False) -> None:
        self.series = series
        self.scale = scale
        self.is_level = is_level
        self.sound_for: object = None


class Scope:
    """A scope of a sender, with its identities. Any thread may use it.

    Attributes:
        known: The scope's identities, by the arguments of ``identity``.
        size: Approximate memory of the scope in bytes.
        sound_for: Rules that have accepted the scope; None if none have yet.
    """

    __slots__ = ("_name", "_reduction", "known", "sender", "size", "sound_for")

    def __init__(self, sender: Sender, serialized: bytes) -> None:
        scope = InstrumentationScope.FromString(serialized)
        self.sender = sender
        self.sound_for: object = None
        self.size = _RESOURCE_BYTES + 2 * len(serialized)
        self._name, self._reduction = _scope_name(scope), _reduction(scope)
        self.known: dict[tuple[object, ...], Identity] = {}

    def identity(
        self,
        name: str,
        unit: str,
        instrument: Instrument,
        data: str,
        attributes: tuple[bytes, ...],
    ) -> Identity:
        """Return the identity of points, mostly the same object each time.

        Args:
            data: See ``Series``.
            attributes: Serialized attributes without the step: with it each step would be another
                series.

        Raises:
            DecodeError: An attribute cannot be parsed.
        """
        key = name, unit, instrument, data, attributes
        found = self.known.get(key)
        if found is None:
            found = self._read(name, unit, instrument, data, attributes)
            texts = 2 * sum(map(len, (name, unit, *attributes)))
            size = _SERIES_BYTES + _ATTRIBUTE_BYTES * len(attributes) + texts
            if self.size > _MAX_RESOURCE_BYTES:
                self.known, self.size = {}, _RESOURCE_BYTES
            self.known[key] = found
            self.size += size
        return found

    def share(
        self, name: str, unit: str, instrument: Instrument, attributes: tuple[bytes, ...]
    ) -> Series:
        """Return the series of a counter's shares of steps, see ``Series.data``."""
        return self.identity(name, unit, instrument, "share", attributes).series

    def _read(
        self,
        name: str,
        unit: str,
        instrument: Instrument,
        data: str,
        attributes: tuple[bytes, ...],
    ) -> Identity:
        sender, scale, is_level = self.sender, 1.0, False
        messages = [KeyValue.FromString(attribute) for attribute in attributes]
        if not sender.exact:
            found = _translated(name, unit, messages)
            if found is not None:
                name, unit, messages, scale, is_level = found
                is_level = is_level and instrument is Instrument.GAUGE and not data
        if is_level:
            instrument = Instrument.UP_DOWN_COUNTER
        parsed, folded = fold(name, text_pairs(messages))
        if sender.host:
            parsed = at_host(parsed, sender.host)
        # In the series, so that each has its own totals; not in the key.
        typed = (*typed_pairs(messages), *folded)
        reduction = self._reduction
        series = Series(
            sender.worker, name, unit, parsed, reduction, instrument, self._name, typed, data
        )
        return Identity(series, scale, is_level=is_level)


class Identified:
    """A resource, with the scopes in it. Any thread may use it.

    Attributes:
        sender: The resource as a sender, the same object each time.
        experiment: Experiment that the resource names; None if it names none.
        sound_for: Rules that have accepted the resource; None if none have yet.
        team: Team that the resource names; empty if it names none.
    """

    __slots__ = ("_bytes", "_key", "_scopes", "experiment", "sender", "sound_for", "team")

    def __init__(self, serialized: bytes) -> None:
        resource = Resource.FromString(serialized)
        self.sender = _sender_of(resource)
        self.experiment = experiment_of(resource.attributes)
        self.team = team_of(resource.attributes)
        self.sound_for: object = None
        self._bytes = _RESOURCE_BYTES + 3 * len(serialized)
        self._key = serialized
        self._scopes: dict[bytes, Scope] = {}

    def scope(self, serialized: bytes) -> Scope:
        """Return a scope, mostly the same object each time."""
        found = self._scopes.get(serialized)
        if found is None:
            found = Scope(self.sender, serialized)
            if len(serialized) > _MAX_KEY_BYTES:
                return found
            if len(self._scopes) >= _MAX_SCOPES:
                self._scopes = {}
            self._scopes[serialized] = found
        return found

    @property
    def key(self) -> bytes:
        return self._key

    def measured(self) -> int:
        """Forget scopes beyond a bound, and return the bytes of the resource in memory."""
        size = self._bytes + sum([scope.size for scope in [*self._scopes.values()]])
        if size <= _MAX_RESOURCE_BYTES:
            return size
        self._scopes = {}
        return self._bytes


class _Resources:
    """Resources of all senders, within a bound on memory."""

    def __init__(self) -> None:
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[Identified, int]] = OrderedDict()
        self._bytes = 0

    def of(self, serialized: bytes) -> Identified:
        if len(serialized) > _MAX_KEY_BYTES:
            return Identified(serialized)
        with self._lock:
            found, size = self._known.pop(serialized, (None, 0))
            if found is None:
                found = Identified(serialized)
                size = found.measured()
                self._bytes += size
            self._known[serialized] = found, size
            self._forget()
        return found

    def measure(self, resource: Identified) -> None:
        with self._lock:
            found, before = self._known.get(resource.key, (None, 0))
            if found is not resource:
                return  # it was forgotten meanwhile, or is too long to be kept
            now = resource.measured()
            self._known[resource.key] = resource, now
            self._bytes += now - before
            self._forget()

    def _forget(self) -> None:
        """Forget the resources that were not seen for longest, until the others fit."""
        while self._bytes > _MAX_BYTES and len(self._known) > 1:
            self._bytes -= self._known.popitem(last=False)[1][1]


_resources = _Resources()


def identified(resource: bytes) -> Identified:
    """Return the object of a serialized resource, mostly the same one each time."""
    return _resources.of(resource)


def measure(resource: Identified) -> None:
    """Account for the memory that a resource has grown by while its points were read."""
    _resources.measure(resource)


def _sender_of(resource: Resource) -> Sender:
    attributes = dict(text_pairs(resource.attributes))
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


def split_step(attributes: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], int | None]:
    """Return serialized attributes without the step, and the step; None without one.

    SDKs without exemplars of every measurement send the step as an attribute.
    """
    if not any(STEP in attribute for attribute in attributes):
        return attributes, None
    messages = [KeyValue.FromString(attribute) for attribute in attributes]
    step = step_of(messages)
    if step is None:
        return attributes, None
    pairs = zip(messages, attributes, strict=True)
    return tuple([one for pair, one in pairs if pair.key != names.RL_LOOP_ITERATION]), step


class _Translated(NamedTuple):
    """What a scraped metric is called in the registry.

    Attributes:
        scale: Factor of the values; rules name histograms in the registry's unit.
        is_level: Whether the metric is an up-down counter, which Prometheus does not tell from a
            gauge.
    """

    name: str
    unit: str
    attributes: list[KeyValue]
    scale: float
    is_level: bool


def _translated(name: str, unit: str, attributes: Iterable[KeyValue]) -> _Translated | None:
    """Translate a metric with certain attributes into the registry; None if no rule applies."""
    found = scraped_alias(name)
    if found is None:
        return None
    dialect, alias = found
    apart = [
        KeyValue(key=f"{APART}{one.key}", value=one.value)
        if one.key in dialect.series_labels
        else one
        for one in attributes
    ]
    if alias is None:
        return _Translated(name, unit, apart, 1, is_level=False)
    kept, texts = list[KeyValue](), dict(alias.attributes)
    for label in apart:
        known = dialect.labels.get(label.key)
        if known is not None:
            texts[known.name] = known.value.format(label.value.string_value)
        elif label.key not in dialect.dropped_labels:
            kept.append(label)
    kept += [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items()]
    spec = names.METRICS.get(alias.name)
    is_level = spec is not None and spec.instrument is Instrument.UP_DOWN_COUNTER
    return _Translated(alias.name, alias.unit, kept, alias.scale, is_level)


def _scope_name(scope: InstrumentationScope) -> str:
    attributes = [pair for pair in scope.attributes if pair.key != names.RL_REDUCE]
    if not attributes:
        return f"{scope.name}@{scope.version}" if scope.version else scope.name
    typed = typed_pairs(attributes)
    return f"{scope.name}@{scope.version}{dict(text_pairs(attributes))}{dict(typed) or ''}"


def _reduction(scope: InstrumentationScope) -> Reduction | None:
    for attribute in scope.attributes:
        if attribute.key == names.RL_REDUCE:
            try:
                return Reduction(attribute.value.string_value)
            except ValueError:
                return None  # a later version's value: the registry's reduction holds
    return None


def serialized(attributes: Iterable[KeyValue]) -> Sequence[bytes]:
    return [attribute.SerializeToString() for attribute in attributes]
