"""Estimates clock offsets between hosts from their spans.

A message is received after it is sent. So each span that uses a message of another host bounds the
difference of the two clocks from one side, and the tightest bounds of both sides enclose it:

    sent at 10 by clock A, received at  7 by clock B    ->  B is at least 3 behind A
    sent at 20 by clock B, received at 25 by clock A    ->  B is at most 5 behind A

If the bounds allow for no difference, none is assumed: messages take their time, and half of it is
not a better guess. Otherwise the estimate is the middle of the two bounds, or the only bound.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from otel_rl.diagnose.spans.span_forest import Forest
from otel_rl.records import SpanRecord


@dataclass(frozen=True, slots=True)
class Clock:
    """Offset of one host's clock against another clock.

    Attributes:
        ahead_ns: Estimated lead in ns; negative if the clock is behind.
        least_ns: Lower bound of the lead; None without one.
        most_ns: Upper bound of the lead; None without one.
    """

    ahead_ns: int = 0
    least_ns: int | None = None
    most_ns: int | None = None


def estimate_clocks(forest: Forest, reference: str) -> Mapping[str, Clock]:
    """Estimate the clocks of all hosts with direct or indirect messages from ``reference``.

    Args:
        forest: Spans, by the clocks of their hosts.
        reference: Host that has the reference clock.
    """
    shortest = _shortest(forest)
    neighbours: dict[str, set[str]] = defaultdict(set)
    for source, target in shortest:
        neighbours[source].add(target)
        neighbours[target].add(source)
    clocks = {reference: Clock(0, 0, 0)}
    waiting = deque([reference])
    while waiting:
        known = waiting.popleft()
        for host in sorted(neighbours[known] - clocks.keys()):
            there, back = shortest.get((known, host)), shortest.get((host, known))
            clocks[host] = _clock(clocks[known], there, back)
            waiting.append(host)
    return clocks


def with_one_clock(
    spans: Iterable[SpanRecord], clocks: Mapping[str, Clock]
) -> Iterator[SpanRecord]:
    """Convert spans to the clock of the reference; those of unknown hosts stay unchanged."""
    for span in spans:
        clock = clocks.get(span.host)
        if clock is None or not clock.ahead_ns:
            yield span
        else:
            yield replace(
                span,
                start_ns=span.start_ns - clock.ahead_ns,
                end_ns=span.end_ns - clock.ahead_ns,
            )


def _shortest(forest: Forest) -> dict[tuple[str, str], int]:
    """Return the shortest apparent delay from one host to another, by their own clocks.

    An apparent delay is the true delay plus the lead of the other clock, so it bounds that lead
    from above.
    """
    shortest: dict[tuple[str, str], int] = {}
    for span in forest.spans:
        for source, sent_ns, received_ns in _messages(forest, span):
            way = (source, span.host)
            took_ns = received_ns - sent_ns
            shortest[way] = min(shortest.get(way, took_ns), took_ns)
    return shortest


def _messages(forest: Forest, span: SpanRecord) -> Iterator[tuple[str, int, int]]:
    """Yield origin, send time and receive time of the messages that a span uses."""
    for producer in forest.linked(span):
        if producer.host != span.host:
            # A waiting sender has sent long before its span ends.
            sent_ns = producer.start_ns if producer.is_wait else producer.end_ns
            yield producer.host, sent_ns, span.end_ns
    parent = forest.parent(span)
    if parent is not None and parent.host != span.host:
        yield parent.host, parent.start_ns, span.start_ns


def _clock(neighbour: Clock, most_ns: int | None, back_ns: int | None) -> Clock:
    """Return the clock of a host from its bounds against a known clock."""
    least_ns = None if back_ns is None else -back_ns
    if most_ns is not None and least_ns is not None and least_ns > most_ns:
        least_ns, most_ns = most_ns, least_ns  # the clock was set in between
    if (least_ns is None or least_ns <= 0) and (most_ns is None or most_ns >= 0):
        ahead_ns = 0
    elif least_ns is not None and most_ns is not None:
        ahead_ns = (least_ns + most_ns) // 2
    else:
        ahead_ns = (most_ns if least_ns is None else least_ns) or 0
    base_ns = neighbour.ahead_ns
    return Clock(
        base_ns + ahead_ns,
        None if least_ns is None else base_ns + least_ns,
        None if most_ns is None else base_ns + most_ns,
    )
