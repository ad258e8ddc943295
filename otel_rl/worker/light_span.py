"""Spans at a fifth of what the SDK's take, as long as what is said of them is plain.

Nearly every span is begun with a few texts and numbers, has a few more set on it, and ends. Those
are kept as what they are. One of which anything else is said, an event or an exception or a list,
becomes the SDK's span from there on, with its rules and limits: nothing of the API works otherwise.

    start_span -> LightSpan -> end -> SpanBuffer
                      |                  ^
                add_event, ...           |
                      v                  |
                  SDK's Span ---------- end
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import Final, final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import Attributes, AttributeValue

__all__ = ["LightLimits", "LightSpan"]

_TEXTS: Final = frozenset({str})

_plain_types: Final[set[type]] = {str, bool, int, float}
"""And what was seen of their subclasses, such as enums of texts."""

OnEnd = Callable[["LightSpan | ReadableSpan"], None]


class LightLimits:
    """What a light span may hold. What is more is for the SDK to judge.

    Args:
        limits: The SDK's.
    """

    def __init__(self, limits: SpanLimits) -> None:
        self.limits = limits
        cuts_texts = (limits.max_attribute_length, limits.max_span_attribute_length) != (None, None)
        self._attributes = 0 if cuts_texts else _at_most(limits.max_span_attributes)
        self._links = 0 if cuts_texts else _at_most(limits.max_links)
        self._link_attributes = 0 if cuts_texts else _at_most(limits.max_link_attributes)

    def attributes(self, given: Attributes) -> dict[str, AttributeValue] | None:
        """A copy of attributes that are plain; None if they are not, or too many."""
        if not given:
            return {}
        if type(given) is not dict or len(given) > self._attributes or not _are_plain(given):
            return None
        return given.copy()

    def links(self, given: Sequence[Link] | None) -> list[Link] | None:
        """A copy of links that are plain; None if they are not, or too many."""
        if not given:
            return []
        if not isinstance(given, list | tuple) or len(given) > self._links:
            return None
        if not all(map(self._is_plain, given)):
            return None
        return list(given)

    def has_room_for(self, attributes: dict[str, AttributeValue], key: str) -> bool:
        """Whether an attribute of a span may be set."""
        return len(attributes) < self._attributes or key in attributes

    def has_room_beside(self, links: Sequence[Link], link: Link) -> bool:
        """Whether a span may have another link."""
        return len(links) < self._links and self._is_plain(link)

    def _is_plain(self, link: object) -> bool:
        if not isinstance(link, Link) or not isinstance(link.context, SpanContext):
            return False
        attributes = link.attributes
        return link.context.is_valid and (
            not attributes
            or (
                isinstance(attributes, dict)
                and len(attributes) <= self._link_attributes
                and _are_plain(attributes)
            )
        )


def _at_most(limit: int | None) -> int:
    return 1 << 30 if limit is None else limit


def _are_plain(attributes: dict[str, AttributeValue]) -> bool:
    if (
        _plain_types.issuperset(map(type, attributes.values()))
        and _TEXTS.issuperset(map(type, attributes))
        and "" not in attributes
    ):
        return True
    if not all(_is_plain(key, value) for key, value in attributes.items()):
        return False
    _plain_types.update(map(type, attributes.values()))
    return True


def _is_plain(key: object, value: object) -> bool:
    """Whether the SDK would take it as it is."""
    return isinstance(value, str | int | float) and isinstance(key, str) and bool(key)


class _FullSpan(SdkSpan):
    """The SDK makes none of its own class but by its tracers, which give each new ids."""


class _Ending(SpanProcessor):
    """Hands the SDK's span on when it ends."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end

    def on_end(self, span: ReadableSpan) -> None:
        self._on_end(span)


@final
class LightSpan(Span):
    """A span of which only plain things have been said. It can be read as a ``ReadableSpan``.

    Args:
        name: As the tracer was given it.
        context: Its ids.
        parent: Of the span around it, or None.
        kind: As the tracer was given it.
        attributes: From ``limits``.
        links: From ``limits``.
        start_time: In ns.
        resource: Whose span it is.
        scope: Of its tracer.
        limits: Of its provider.
        on_end: Takes it when it has ended.
    """

    __slots__ = (
        "_full",
        "_limits",
        "_lock",
        "_on_end",
        "attributes",
        "context",
        "end_time",
        "instrumentation_scope",
        "kind",
        "links",
        "name",
        "parent",
        "resource",
        "start_time",
    )

    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        links: list[Link],
        start_time: int,
        resource: Resource,
        scope: InstrumentationScope,
        limits: LightLimits,
        on_end: OnEnd,
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.start_time = start_time
        self.resource = resource
        self.instrumentation_scope = scope
        self._limits = limits
        self._on_end = on_end
        # Guards the four below: it ends once, and becomes one span of the SDK's.
        self._lock = threading.Lock()
        self.attributes = attributes
        self.links = links
        self.end_time: int | None = None
        self._full: SdkSpan | None = None

    def __getattr__(self, name: str) -> object:
        """What this one does not know itself, the SDK's span says."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._become_full(), name)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """See ``opentelemetry.sdk.trace.Span``: an exception that leaves it is said, and passes."""
        if exc_val is not None and self.is_recording():
            self.record_exception(exc_val, escaped=True)
            said = f"{type(exc_val).__name__}: {exc_val}"
            self.set_status(Status(StatusCode.ERROR, said))
        self.end()

    def get_span_context(self) -> SpanContext:
        """See ``Span``."""
        return self.context

    def is_recording(self) -> bool:
        """See ``Span``."""
        return self.end_time is None

    def end(self, end_time: int | None = None) -> None:
        """See ``Span``."""
        with self._lock:
            if self.end_time is not None:
                return
            self.end_time = time_ns() if end_time is None else end_time
            full = self._full
        if full is None:
            self._on_end(self)
        else:
            full.end(self.end_time)

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """See ``Span``."""
        if _is_plain(key, value):
            with self._lock:
                if self._is_light and self._limits.has_room_for(self.attributes, key):
                    self.attributes.pop(key, None)  # what is said last stands last
                    self.attributes[key] = value
                    return
        self._become_full().set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """See ``Span``."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """See ``Span``."""
        link = Link(context, attributes and dict(attributes))
        with self._lock:
            if self._is_light and self._limits.has_room_beside(self.links, link):
                self.links.append(link)
                return
        self._become_full().add_link(context, attributes)

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        """See ``Span``."""
        self._become_full().add_event(name, attributes, timestamp)

    def update_name(self, name: str) -> None:
        """See ``Span``."""
        self._become_full().update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """See ``Span``."""
        self._become_full().set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001, FBT002  # as Span has it
    ) -> None:
        """See ``Span``."""
        self._become_full().record_exception(exception, attributes, timestamp, escaped)

    @property
    def _is_light(self) -> bool:
        return self._full is None and self.end_time is None

    def _become_full(self) -> SdkSpan:
        """The same span as the SDK's; one that has ended if this one has."""
        with self._lock:
            full = self._full
            if full is None:
                is_over = self.end_time is not None
                full = self._full = _FullSpan(
                    self.name,
                    self.context,
                    self.parent,
                    kind=self.kind,
                    resource=self.resource,
                    attributes=self.attributes,
                    links=self.links,
                    span_processor=SpanProcessor() if is_over else _Ending(self._on_end),
                    instrumentation_scope=self.instrumentation_scope,
                    limits=self._limits.limits,
                )
                full.start(self.start_time)
                if is_over:  # nobody gets it: it is there to say that this comes too late
                    full.end(self.end_time)
                else:  # from now on these are asked of it
                    del self.name, self.attributes, self.links
            return full
