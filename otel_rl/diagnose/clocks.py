"""By how much the clocks of hosts differ, as far as their spans can say.

Nothing is received before it is sent. So each span that uses something of another host bounds the
difference of the two clocks from one side, and the tightest bounds of both sides enclose it:

    sent at 10 by clock A, received at  7 by clock B    ->  B is at least 3 behind A
    sent at 20 by clock B, received at 25 by clock A    ->  B is at most 5 behind A

Where the bounds allow for no difference at all, none is assumed: messages take their time, and half
of it is no better guess. Else the middle of the two bounds is, or the one bound that there is.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from otel_rl.diagnose.forest import Forest
from otel_rl.records import SpanRecord

__all__ = ["Clock", "estimate_clocks", "with_one_clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of one host against that of another.

    Attributes:
        ahead_ns: By how much it is taken to be ahead; negative if behind.
        least_ns: It is ahead by at least this much; None if nothing says so.
        most_ns: It is ahead by at most this much; None if nothing says so.
    """

    ahead_ns: int = 0
    least_ns: int | None = None
    most_ns: int | None = None


def estimate_clocks(forest: Forest, reference: str) -> Mapping[str, Clock]:
    """The clocks of all hosts that exchange something with ``reference``, directly or over others.

    Args:
        forest: Of the spans, by the clocks of their hosts.
        reference: The host whose clock is taken to be right.
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
    """The spans by the clock of the reference; those of hosts that are not known as they are."""
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
    """The shortest time that anything took from one host to another, by their own clocks.

    It is the shortest delay and by how much the other is ahead, so it is ahead by no more than
    that.
    """
    shortest: dict[tuple[str, str], int] = {}
    for span in forest.spans:
        for source, sent_ns, received_ns in _messages(forest, span):
            way = (source, span.host)
            took_ns = received_ns - sent_ns
            shortest[way] = min(shortest.get(way, took_ns), took_ns)
    return shortest


def _messages(forest: Forest, span: SpanRecord) -> Iterator[tuple[str, int, int]]:
    """Where what a span uses of other hosts came from, when it was sent and when received."""
    for producer in forest.linked(span):
        if producer.host != span.host:
            # Who waits for those it sends to has sent long before it ends.
            sent_ns = producer.start_ns if producer.is_wait else producer.end_ns
            yield producer.host, sent_ns, span.end_ns
    parent = forest.parent(span)
    if parent is not None and parent.host != span.host:
        yield parent.host, parent.start_ns, span.start_ns


def _clock(neighbour: Clock, most_ns: int | None, back_ns: int | None) -> Clock:
    """The clock of a host from the bounds against one that is known."""
    least_ns = None if back_ns is None else -back_ns
    if most_ns is not None and least_ns is not None and least_ns > most_ns:
        least_ns, most_ns = most_ns, least_ns  # it was set in between
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
