"""Takes the histograms out of a serialized ``ResourceMetrics``: their lengths differ each time.

The rest is a body of its own, with a shape like any other:

    scope [ name  gauge  gauge  HISTOGRAM  sum  HISTOGRAM ]    as it was sent
    scope [ name  gauge  gauge             sum            ]    the rest, with the shorter length

A worker sends its metrics in the same order each time, so the next body is cut at the same places
without a look at any other metric. The rest tells whether that was right: it has a known shape only
if the metrics between the cuts are those of that shape, and no cut is within one of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from otel_rl.bridge.otlp.shapes.fields import LEN, NoLayout, length_at, strict_fields, with_length
from otel_rl.bridge.otlp.shapes.layout import MAX_BODY_BYTES

__all__ = ["HISTOGRAMS", "CutBody", "Cuts", "Histogram"]

HISTOGRAMS: Final = frozenset({"histogram", "exponential_histogram"})
"""Kinds of metrics that are taken out."""

_SCOPE_METRICS = _METRICS = 2
_TAG: Final = 0x12  # of both: field 2, length-delimited
_DATA_OF_HISTOGRAMS: Final = frozenset({9, 10})  # fields of Metric

_FILLER: Final = b"\x12\x03\x0a\x01x"
"""A metric without data: a scope of histograms only would be empty, and empty ones are removed."""

_CUTS_OF_AN_OWNER: Final = 3

_MAX_OWNERS: Final = 1 << 12
_MAX_LENGTHS: Final = 1 << 18
"""Lengths in all cuts: 10 MiB. A worker with four histograms has about ten in each."""


class Histogram(NamedTuple):
    """A metric that was taken out.

    Attributes:
        scope: Place in the rest where its scope begins.
        metric: Serialized ``Metric``, unchecked.
    """

    scope: int
    metric: bytes

    @property
    def field(self) -> bytes:
        """Return the metric as the field of a ``ScopeMetrics``."""
        return with_length(_TAG, len(self.metric)) + self.metric


class CutBody(NamedTuple):
    """A body in two parts.

    Attributes:
        rest: All but the histograms.
        histograms: In their order.
        cuts: Places in the rest where a scope with histograms begins, one was, or a filler is.
    """

    rest: bytes
    histograms: Sequence[Histogram]
    cuts: Sequence[int] = ()


_Runs = tuple[int, ...]
"""Lengths of what stays of a scope: before, between and after its histograms."""

_Cut = tuple[int | _Runs, ...]
"""Pieces of a body: the length of one that stays, or a scope with histograms."""


class Cuts:
    """Knows where the bodies of each sender are cut. Any thread may use it.

    Args:
        max_lengths: Bound on the memory, in lengths of pieces.
    """

    def __init__(self, max_lengths: int = _MAX_LENGTHS) -> None:
        self._max_lengths = max_lengths
        # _lock guards changes of what follows. The owner that was learned last is the last.
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[_Cut, ...]] = OrderedDict()
        self._lengths = 0

    @property
    def lengths(self) -> int:
        """Return the number of lengths in all cuts."""
        return self._lengths

    def again(self, owner: Hashable, body: bytes) -> CutBody | None:
        """Cut a body where an earlier one of its sender was; None if none fits."""
        if len(body) > MAX_BODY_BYTES:
            return None
        for cut in self._known.get(owner, ()):
            found = _cut(body, cut)
            if found is not None:
                return found
        return None

    def anew(self, owner: Hashable, body: bytes) -> CutBody:
        """Cut a body at its histograms; one without, or of unusual fields, stays whole."""
        if len(body) > MAX_BODY_BYTES:
            return CutBody(body, ())
        try:
            cut = _find(body)
        except NoLayout:
            return CutBody(body, ())
        found = None if cut is None else _cut(body, cut)
        if cut is None or found is None:
            return CutBody(body, ())
        self._keep(owner, cut)
        return found

    def _keep(self, owner: Hashable, cut: _Cut) -> None:
        with self._lock:
            before = self._known.pop(owner, ())
            others = [one for one in before if one != cut][: _CUTS_OF_AN_OWNER - 1]
            self._known[owner] = cut, *others
            self._lengths += _lengths(self._known[owner]) - _lengths(before)
            while len(self._known) > _MAX_OWNERS or self._lengths > self._max_lengths:
                self._lengths -= _lengths(self._known.popitem(last=False)[1])


def _lengths(cuts: Sequence[_Cut]) -> int:
    return sum(1 if isinstance(piece, int) else len(piece) for cut in cuts for piece in cut)


def _find(body: bytes) -> _Cut | None:
    """Return the cut of a body; None if it has no histogram."""
    pieces: list[int | _Runs] = []
    stays = 0
    position = 0
    for number, kind, start, end in strict_fields(body, 0, len(body)):
        is_scope = (number, kind) == (_SCOPE_METRICS, LEN)
        scope = _find_in_scope(body, start, end) if is_scope else None
        if scope is None:
            stays += end - position
        else:
            pieces += (stays, scope)
            stays = 0
        position = end
    return (*pieces, stays) if pieces else None


def _find_in_scope(body: bytes, start: int, end: int) -> _Runs | None:
    runs, run = list[int](), 0
    position = start
    for number, kind, content, after in strict_fields(body, start, end):
        if (number, kind) == (_METRICS, LEN) and _is_histogram(body, content, after):
            runs.append(run)
            run = 0
        else:
            run += after - position
        position = after
    return (*runs, run) if runs else None


def _is_histogram(body: bytes, start: int, end: int) -> bool:
    return any(
        number in _DATA_OF_HISTOGRAMS and kind == LEN
        for number, kind, _, _ in strict_fields(body, start, end)
    )


def _cut(body: bytes, cut: _Cut) -> CutBody | None:
    """Cut a body; None if it does not have the same pieces."""
    rest: list[bytes] = []
    histograms: list[Histogram] = []
    cuts: list[int] = []
    position = 0
    for piece in cut:
        if isinstance(piece, int):
            rest.append(body[position : position + piece])
            position += piece
            continue
        end = _cut_scope(body, position, piece, rest, histograms)
        if end is None:
            return None
        cuts += _places(piece, rest)
        position = end
    return CutBody(b"".join(rest), histograms, cuts) if position == len(body) else None


def _cut_scope(
    body: bytes, position: int, runs: _Runs, rest: list[bytes], histograms: list[Histogram]
) -> int | None:
    """Cut the scope at a position. Returns its end; None if it is another one."""
    if body[position : position + 1] != b"\x12":
        return None
    length, position = length_at(body, position + 1)
    end = position + length
    if length < 0 or end > len(body):
        return None
    first, *others = runs
    stays = [body[position : position + first]]
    metrics: list[bytes] = []
    position += first
    for run in others:
        if position >= end or body[position] != _TAG:
            return None
        length, start = length_at(body, position + 1)
        if length < 0:
            return None
        position = start + length
        metrics.append(body[start:position])
        stays.append(body[position : position + run])
        position += run
    if position != end:
        return None
    content = b"".join(stays)
    scope = sum(map(len, rest))
    histograms += [Histogram(scope, metric) for metric in metrics]
    rest += (with_length(_TAG, len(content) + len(_FILLER)), content, _FILLER)
    return end


def _places(runs: _Runs, rest: Sequence[bytes]) -> Iterator[int]:
    """Yield the places of a scope whose head, content and filler are the last ones of the rest."""
    *before, head, _, _ = map(len, rest)
    place = sum(before)
    yield place
    yield from accumulate(runs, initial=place + head)
