"""Tells a sender what became of points after they were taken: dropped, for want of series.

A request is answered when it is durable, before anybody knows which of its series are new. So what
was dropped is in the answer to the sender's next request of the experiment: in
``partial_success``, counted once.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence

from otel_rl.bridge.otlp.sender import sender_of
from otel_rl.bridge.receive.wire import fields
from otel_rl.records import Batch, ExperimentKey, Signal

__all__ = ["Overflow", "Told"]

# Senders that are owed an answer. One more is not told, nor one whose name is absurdly long; the
# run is, and the counters have it.
_MAX_SENDERS = 10_000
_MAX_NAME_CHARS = 512

_RESOURCE = 1  # the number of its field in what a request has of one resource

Told = tuple[int, str]
"""Points that were dropped, and what to tell their sender; 0 and empty if there are none."""


class Overflow:
    """Points that were dropped and whose senders were not told yet. Any thread may call it."""

    def __init__(self) -> None:
        # _lock guards _owed. Most bridges never have an entry, so a look at it comes first.
        self._lock = threading.Lock()
        self._owed: dict[tuple[ExperimentKey, str], tuple[int, str]] = {}

    def add(self, key: ExperimentKey, dropped: Mapping[str, tuple[int, str]]) -> None:
        """Take note of points that were dropped: by worker, how many and a metric's name."""
        with self._lock:
            for instance, (points, example) in dropped.items():
                before, first = self._owed.get((key, instance), (0, example))
                has_room = len(self._owed) < _MAX_SENDERS and len(instance) <= _MAX_NAME_CHARS
                if before or has_room:
                    self._owed[key, instance] = (before + points, first)

    def take(self, batches: Sequence[Batch]) -> Told:
        """Take out what the senders of a request are owed."""
        if not self._owed:
            return 0, ""
        with self._lock:
            experiments = {key for key, _ in self._owed}
        points, examples = 0, []
        for key, instance in _senders(
            batch for batch in batches if batch.experiment in experiments
        ):
            with self._lock:
                owed = self._owed.pop((key, instance), None)
            if owed is not None:
                points += owed[0]
                examples.append(f"{owed[1]!r} of experiment {str(key)[:64]!r}")
        if not points:
            return 0, ""
        return points, (
            f"Data points dropped since the last answer: {points} (too_many_series), first of "
            f"{examples[0]}. The experiment has as many series as it may: send what has a new "
            "value every time as a value, not as an attribute, or raise align.max_series and "
            "align.max_keys of the bridge."
        )


def _senders(batches: Iterable[Batch]) -> Sequence[tuple[ExperimentKey, str]]:
    """The workers of a request, each once. Only their resources are read."""
    found: dict[tuple[ExperimentKey, str], None] = {}
    for batch in batches:
        if batch.signal is Signal.METRICS:
            for _, _, start, end in fields(batch.payload):
                part = batch.payload[start:end]
                for number, _, first, last in fields(part):
                    if number == _RESOURCE:
                        worker = sender_of(part[first:last]).worker
                        found[batch.experiment, worker.instance] = None
                        break
    return list(found)
