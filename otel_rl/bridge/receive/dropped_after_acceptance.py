"""Reports points dropped after their request was accepted, because of the series limit.

A request is answered when it is durable, before its new series are known. So dropped points are
reported in the answer to the sender's next request of the experiment, in ``partial_success``, and
counted once.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence

from otel_rl.bridge.otlp.resource import sender_of
from otel_rl.bridge.receive.parsing.preparse import fields
from otel_rl.records import Batch, ExperimentKey, Signal

__all__ = ["Overflow", "Told"]

# Senders with a pending report. Beyond it, and for overlong names, only the run and the counters
# report the drop.
_MAX_SENDERS = 10_000
_MAX_NAME_CHARS = 512

_RESOURCE = 1  # field number of the resource in a part of a request

Told = tuple[int, str]
"""Number of dropped points and the message for their sender; 0 and empty if there are none."""


class Overflow:
    """Dropped points whose senders have not been notified yet. Any thread may call it."""

    def __init__(self) -> None:
        # _lock guards _owed. Most bridges never have an entry, so it is checked first.
        self._lock = threading.Lock()
        self._owed: dict[tuple[ExperimentKey, str], tuple[int, str]] = {}

    def add(self, key: ExperimentKey, dropped: Mapping[str, tuple[int, str]]) -> None:
        """Record dropped points: by worker, their number and a metric's name."""
        with self._lock:
            for instance, (points, example) in dropped.items():
                before, first = self._owed.get((key, instance), (0, example))
                has_room = len(self._owed) < _MAX_SENDERS and len(instance) <= _MAX_NAME_CHARS
                if before or has_room:
                    self._owed[key, instance] = (before + points, first)

    def take(self, batches: Sequence[Batch]) -> Told:
        """Remove and return the pending report for the senders of a request."""
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
    """Yield the workers of a request, each once. Only resources are parsed."""
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
