"""What became of the samples of an experiment, since it began."""

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts of samples. A measurement is one; so is a point of a counter or histogram.

    Attributes:
        taken: Stand in a row, or will.
        late: Of those, the ones that came after their row was closed and made one of their own.
        duplicate: Came again, or were overtaken by a later total, and were left out.
        too_many_series: Dropped: the experiment has ``max_series`` series.
        too_old: Dropped: nobody can tell any more whether they were taken.
        spans_too_old: Spans that came too late to explain a step, or made room for newer ones.
    """

    taken: int = 0
    late: int = 0
    duplicate: int = 0
    too_many_series: int = 0
    too_old: int = 0
    spans_too_old: int = 0

    def drop_as_duplicate(self, samples: int) -> None:
        """These were counted as taken, but have come again."""
        self.taken -= samples
        self.duplicate += samples

    def drop_as_too_old(self, samples: int) -> None:
        """These were counted as taken, but cannot be."""
        self.taken -= samples
        self.too_old += samples
