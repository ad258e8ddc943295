"""Counts of the samples of an experiment, since it began."""

from otel_rl.bridge.journal.state import Stored

__all__ = ["SampleCounts"]


class SampleCounts(Stored):
    """Counts of samples. A measurement is one; so is a point of a counter or histogram.

    Attributes:
        taken: In a row, now or later.
        late: Of those, the ones that arrived after their row was closed and made one of their own.
        duplicate: Repeats, or overtaken by a later total, and left out.
        too_many_series: Dropped: the experiment has ``max_series`` series.
        too_old: Dropped: they may be repeats of forgotten samples.
        spans_too_old: Spans that were too late to explain a step, or were evicted for newer ones.
    """

    taken: int = 0
    late: int = 0
    duplicate: int = 0
    too_many_series: int = 0
    too_old: int = 0
    spans_too_old: int = 0

    def count_late(self, samples: int) -> None:
        """Count taken samples that arrived after their row."""
        self.late += samples

    def drop_as_duplicate(self, samples: int) -> None:
        """Recount samples from taken to duplicate."""
        self.taken -= samples
        self.duplicate += samples

    def drop_as_too_old(self, samples: int) -> None:
        """Recount samples from taken to too old."""
        self.taken -= samples
        self.too_old += samples
