"""The list of missed goals has the commit and date of each run."""

from bench.figures import Figure, Limits
from bench.listing import listing
from bench.record import PartRecord


def test_each_missed_goal_is_a_line_below_its_commit_and_date() -> None:
    figures = [
        Figure("met", "us", 1.0, 4.0, "SDK", 0.25, 0.5, spread=(0.2, 0.3)),
        Figure("slow", "us", 3.0, 4.0, "SDK", 0.75, 0.5, spread=(0.2, 1.3)),
        Figure("large", "MB", 15.0, 60.0, "SDK", 0.25, 12.0, Limits.OURS),
        Figure("without a goal", "us", 1.0, 4.0, "SDK", 0.25),
    ]
    part = PartRecord("Title", "abc", "2026-01-02", "2 cores", (0.0, 1.0), figures)
    assert [*listing([part])] == [
        "",
        "Title (abc, 2026-01-02, load 0 to 1):",
        "",
        "- slow: 0.75 (0.2 to 1.3); goal 0.5",
        "- large: 15 MB; goal 12",
    ]


def test_a_part_that_misses_nothing_is_left_out() -> None:
    figure = Figure("met", "us", 1.0, 4.0, "SDK", 0.25, 0.5)
    part = PartRecord("Title", "abc", "2026-01-02", "2 cores", (0.0, 1.0), [figure])
    assert [*listing([part])] == []
