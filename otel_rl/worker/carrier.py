"""Where a sample came from, written beside it, and read where it is trained on.

    generator                     buffer                       trainer
    carrier.inject(sample)  -->   {"tokens": ..., "otel_rl": stamp}  -->   carrier.link(batch)

Between the two lie a replay buffer and minutes, so the work that uses a sample is no part of the
work that made it: its span *links* to it. A stamp is one line of text, W3C trace context first:

    00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01;v=7;s=411;t=1700000000000000000

with the policy version, the step and the time (ns since the Unix epoch). It fits wherever text
does: a column of an array, a field of a message, a header.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import time_ns
from typing import Final, NamedTuple, TypeVar

from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

from otel_rl import __version__
from otel_rl.semconv import names
from otel_rl.worker import flows, serving, session
from otel_rl.worker.calls import sends_context, takes_context
from otel_rl.worker.drops import DropReason
from otel_rl.worker.values import as_step

__all__ = [
    "KEY",
    "MAX_LINKS",
    "MAX_SAMPLES",
    "Origin",
    "inject",
    "link",
    "link_weights",
    "read",
    "sends_context",
    "stamp",
    "takes_context",
]

KEY: Final = "otel_rl"
"""The key, or the attribute, at which a sample has its stamp."""

MAX_LINKS: Final = 64
"""Of one call. The SDK keeps 128 links of a span, and a person reads fewer."""

MAX_SAMPLES: Final = 65_536
"""Of one call; the rest is counted as dropped."""

_SCOPE: Final = "otel_rl.carrier"

_NS_PER_S: Final = 1_000_000_000

_STAMP: Final = re.compile(
    r"(?:00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}))?"
    r"(?:;v=(-?\d{1,19}))?(?:;s=(-?\d{1,19}))?(?:;t=(\d{1,19}))?"
)

_TEXT_KINDS: Final = "OSUTV"  # objects, bytes, text and records, as numpy has them

_Item = TypeVar("_Item")


class Origin(NamedTuple):
    """What a stamp says; None where it says nothing.

    Attributes:
        span: (trace id, span id, trace flags) of the span in which the sample was made.
        version: The policy version that made it.
        step: The training step in which it was made.
        time_ns: When, since the Unix epoch.
    """

    span: tuple[int, int, int] | None
    version: int | None
    step: int | None
    time_ns: int | None


def stamp(*, policy_version: int | None = None, step: int | None = None) -> str:
    """Where and when the caller is: a line of text to keep beside what it makes. Never raises.

    Args:
        policy_version: Of the policy that makes the sample, or of the weights that are handed out;
            default that of the weights that ``link_weights`` saw last. The current span gets it.
        step: The training step, if the caller knows one; default the one that it is in.
    """
    with session.GUARD:
        span = get_current_span()
        context = span.get_span_context()
        version, number = as_step(policy_version), as_step(_step(step))
        if version is not None:
            span.set_attribute(names.RL_POLICY_VERSION, version)
        elif (weights := serving.served()) is not None:
            version = weights.version
        return "".join(
            (
                f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
                if context.is_valid
                else "",
                "" if version is None else f";v={version}",
                "" if number is None else f";s={number}",
                f";t={time_ns()}",
            )
        )
    return ""


def inject(item: _Item, *, policy_version: int | None = None, step: int | None = None) -> _Item:
    """Write a ``stamp`` into a sample. Never raises.

    Args:
        item: A mutable mapping, which gets the key ``otel_rl``; or an object, which gets the
            attribute. What takes neither is left as it is, and counted: keep a ``stamp`` beside it.
        policy_version: See ``stamp``.
        step: See ``stamp``.

    Returns:
        The item.
    """
    with session.GUARD:
        text = stamp(policy_version=policy_version, step=step)
        try:
            if isinstance(item, Mapping):
                item[KEY] = text  # type: ignore[index]  # or a TypeError
            else:
                setattr(item, KEY, text)
        except (TypeError, AttributeError):
            session.GUARD.drop(
                DropReason.NO_STAMP,
                f"carrier.inject: a {type(item).__name__} takes no stamp. Keep what "
                "carrier.stamp() returns beside it.",
            )
    return item


def link(items: object, *, policy_version: int | None = None, step: int | None = None) -> None:
    """Link the current span to those in which samples were made, and measure their age.

    Call it where the samples are used, within the span of the step or phase. Never raises. Of more
    than 64 different spans, 64 are linked: the latest 32, which the work may have waited for, and
    others evenly over the rest; the span says of how many.

    Records ``rl.sample.age.duration``, and ``.versions`` and ``.steps`` where both sides know them,
    each as mean, min, max, p50 and p99 over the samples.

    Args:
        items: Samples with a stamp, stamps, or any nesting of sequences and arrays of them.
        policy_version: The version that is trained now.
        step: The training step; default the one that the caller is in.
    """
    with session.GUARD:
        number = as_step(_step(step))
        texts = list(islice(_stamps(items), MAX_SAMPLES + 1))
        if len(texts) > MAX_SAMPLES:
            session.GUARD.drop(
                DropReason.TOO_MANY_SAMPLES,
                f"carrier.link: more than {MAX_SAMPLES} samples in one call; the rest is left out.",
            )
            texts.pop()
        # Those of one generation are mostly of one span, with one stamp.
        marks = [(mark, n) for text, n in Counter(texts).items() if (mark := _parse(text))]
        _link([mark for mark, _ in marks], sum(n for _, n in marks))
        _measure(marks, as_step(policy_version), number)


def link_weights(weights: object, *, policy_version: int | None = None) -> None:
    """Link the current span, in which weights were taken, to the one that handed them out.

    What is generated from now on is linked to the current span: the spans of the phase
    ``generate``, in all threads. Call it within the span of ``weight_sync`` or ``weight_pull``,
    with what came beside the weights. Never raises.

    Args:
        weights: A ``stamp``, or something that has one.
        policy_version: Of the weights; default what the stamp says.
    """
    with session.GUARD:
        span = get_current_span()
        mark = next((mark for text in _stamps(weights) if (mark := _parse(text))), None)
        version = as_step(policy_version)
        if mark is not None:
            if version is None:
                version = _integer(mark.version)
            place = _place(mark)
            if place is not None:
                span.add_link(_context(place))
        if version is not None:
            span.set_attribute(names.RL_POLICY_VERSION, version)
        serving.serve(serving.Serving(span.get_span_context(), version))


def _step(given: int | None) -> int | None:
    return flows.current().step_number if given is None else given


def _stamps(items: object) -> Iterator[str]:
    """The stamps in whatever they are kept in. No recursion: a batch may be nested as one likes."""
    waiting: list[Iterator[object]] = [iter((items,))]
    while waiting:
        item = next(waiting[-1], waiting)
        if item is waiting:
            waiting.pop()
        elif isinstance(item, str):
            yield item
        elif isinstance(item, bytes):
            yield item.decode("ascii", "replace")
        elif isinstance(item, Mapping):
            waiting.append(iter((item[KEY],) if KEY in item else ()))
        elif hasattr(item, KEY):
            waiting.append(iter((getattr(item, KEY),)))
        elif hasattr(item, "tolist"):
            if _may_hold_text(item):
                waiting.append(iter((item.tolist(),)))
        elif isinstance(item, Iterable):
            waiting.append(iter(item))


def _may_hold_text(array: object) -> bool:
    """Whether an array may hold stamps. To read a tensor on a device would be to wait for it."""
    kind = getattr(getattr(array, "dtype", None), "kind", None)
    if isinstance(kind, str):
        return kind in _TEXT_KINDS
    return not hasattr(array, "device")  # torch has no tensors of text


def read(text: str) -> Origin | None:
    """What a ``stamp`` says; None if ``text`` is none."""
    mark = _parse(text)
    if mark is None:
        return None
    trace_id, span_id, flags, *written = mark
    version, step, time = map(_integer, written)
    span = None
    if trace_id and span_id and flags and int(trace_id, 16) and int(span_id, 16):
        span = int(trace_id, 16), int(span_id, 16), int(flags, 16)
    return Origin(span, version, step, time)


def _parse(text: str) -> "_Mark | None":
    """The parts of a stamp as they are written: most of them are not needed as numbers."""
    match = _STAMP.fullmatch(text.strip())
    return _Mark(*match.groups()) if match is not None and match[0] else None


class _Mark(NamedTuple):
    """A stamp, taken apart; None for what it does not have."""

    trace_id: str | None
    span_id: str | None
    flags: str | None
    version: str | None
    step: str | None
    time: str | None


def _integer(written: str | None) -> int | None:
    return None if written is None else int(written)


def _link(marks: Iterable[_Mark], samples: int) -> None:
    span = get_current_span()
    if not span.is_recording():
        return
    latest: dict[tuple[str, str, str], int] = {}
    for mark in marks:
        place = _place(mark)
        if place is not None:
            latest[place] = max(latest.get(place, 0), int(mark.time or 0))
    for place in _chosen(sorted(latest, key=lambda one: latest[one])):
        span.add_link(_context(place))
    span.set_attribute(names.RL_SAMPLE_COUNT, samples)
    span.set_attribute(names.RL_SAMPLE_ORIGINS, len(latest))


def _place(mark: _Mark) -> tuple[str, str, str] | None:
    """(trace id, span id, flags) as they are written, if there are such."""
    if mark.trace_id and mark.span_id and mark.flags:
        return mark.trace_id, mark.span_id, mark.flags
    return None


def _context(place: tuple[str, str, str]) -> SpanContext:
    trace, own, sampled = (int(part, 16) for part in place)
    return SpanContext(trace, own, is_remote=True, trace_flags=TraceFlags(sampled))


def _chosen(spans: Sequence[_Item]) -> Iterable[_Item]:
    """Some of them, in their order."""
    if len(spans) <= MAX_LINKS:
        return spans
    half = MAX_LINKS // 2
    others, latest = spans[:-half], spans[-half:]
    return [*(others[place * len(others) // half] for place in range(half)), *latest]


def _measure(marks: Sequence[tuple[_Mark, int]], version: int | None, step: int | None) -> None:
    current = session.running() or session.start_from_environment()
    if current is None:
        return
    meter = current.providers.meter.get_meter(_SCOPE, __version__)
    now_ns = time_ns()
    ages: dict[str, list[float]] = {names.RL_SAMPLE_AGE_DURATION: []}
    if version is not None:
        ages[names.RL_SAMPLE_AGE_VERSIONS] = []
    if step is not None:
        ages[names.RL_SAMPLE_AGE_STEPS] = []
    for mark, n in marks:
        if mark.time is not None:
            age_s = (now_ns - int(mark.time)) / _NS_PER_S
            ages[names.RL_SAMPLE_AGE_DURATION].extend([age_s] * n)
        if version is not None and mark.version is not None:
            ages[names.RL_SAMPLE_AGE_VERSIONS].extend([version - int(mark.version)] * n)
        if step is not None and mark.step is not None:
            ages[names.RL_SAMPLE_AGE_STEPS].extend([step - int(mark.step)] * n)
    for name, values in ages.items():
        if values:
            spec = names.METRICS[name]
            gauge = meter.create_gauge(name, spec.unit, spec.brief)
            for statistic, value in _statistics(values):
                attributes: dict[str, str | int] = {names.RL_STATISTIC: statistic}
                if step is not None:
                    attributes[names.RL_LOOP_ITERATION] = step
                gauge.set(value, attributes)


def _statistics(values: list[float]) -> Iterator[tuple[str, float]]:
    values.sort()
    last = len(values) - 1
    yield "mean", sum(values) / len(values)
    yield "min", values[0]
    yield "max", values[-1]
    yield "p50", values[round(0.50 * last)]
    yield "p99", values[round(0.99 * last)]
