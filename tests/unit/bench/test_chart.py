"""The chart of the bench shows each figure with a goal, and on which side of the goal it is."""

import xml.etree.ElementTree as ET

import pytest

from bench.chart import chart
from bench.figures import Figure, Limits
from bench.record import PartRecord

SVG = "{http://www.w3.org/2000/svg}"


def part(*figures: Figure) -> PartRecord:
    return PartRecord("Title & text", "abc", "2026-01-02", "2 cores", (0.0, 1.0), figures)


def figure(ratio: float, goal: float | None = 0.5) -> Figure:
    return Figure("a < b", "us", ratio, 1.0, "SDK", ratio, goal)


def bar_and_goal(figure: Figure) -> tuple[float, float]:
    """Right end of the figure's bar, and the line of the goals."""
    root = ET.fromstring(chart([part(figure)]))
    bar = [one for one in root.iter(f"{SVG}rect") if "x" in one.attrib][-1]
    line = next(root.iter(f"{SVG}path"))
    return (
        float(bar.attrib["x"]) + float(bar.attrib["width"]),
        float(line.attrib["d"].split()[0].lstrip("M")),
    )


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.49, 0.51, 1.0, 40.0])
def test_a_bar_crosses_the_line_of_the_goal_if_it_misses_it(ratio: float) -> None:
    shown = figure(ratio)
    end, goal = bar_and_goal(shown)
    assert (end > goal) is not shown.met


def test_a_goal_of_the_cost_itself_is_drawn_by_the_cost() -> None:
    shown = Figure("start", "MB", 15.0, 60.0, "wandb.init", 0.25, 12.0, Limits.OURS)
    end, goal = bar_and_goal(shown)
    assert end > goal


def test_every_figure_with_a_goal_is_there_with_its_numbers() -> None:
    root = ET.fromstring(chart([part(figure(0.25), figure(7.0, goal=None))]))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts.count("a < b") == 1
    assert "0.25 us: 0.25 of 1, SDK; goal 0.5" in texts
    assert "Title & text" in texts


def test_a_part_without_goals_is_left_out() -> None:
    root = ET.fromstring(chart([part(figure(7.0, goal=None))]))
    assert not list(root.iter(f"{SVG}path"))
