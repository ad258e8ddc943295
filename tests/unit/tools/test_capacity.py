"""The formula of docs/scale.md beside the published figures of the bench."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.capacity import FACTOR, Load, cores, misses, of_workers, table
from bench.record import PartRecord, read
from bench.sparse_worker import GAUGES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text()


@pytest.fixture
def published() -> dict[str, PartRecord]:
    return read(ROOT / "docs" / "bench.json")


def test_every_published_figure_of_a_bridge_is_near_the_formula(
    published: dict[str, PartRecord],
) -> None:
    lines = [line for line in table(published) if line.startswith("| sparse") or "foreign" in line]
    assert len(lines) == 8
    assert [*misses(published)] == []
    assert f"factor of {FACTOR:g}" in " ".join(PAGE.split())


@pytest.mark.parametrize("by", [0.4, 2.5])
def test_a_bridge_that_became_dearer_or_cheaper_is_told(
    published: dict[str, PartRecord], by: float
) -> None:
    part = published["foreign"]
    figures = [replace(figure, ours=figure.ours * by) for figure in part.figures]
    told = [*misses({"foreign": replace(part, figures=figures)})]
    assert [line.partition(":")[0] for line in told] == ["foreign", "foreign"]


def test_the_examples_of_the_page_are_those_of_the_formula() -> None:
    text = " ".join(PAGE.split())
    found = re.findall(
        r"([\d,.]+) x 0.00115 \+ ([\d,]+) x 0.000002(?: \+ ([\d,]+) x 0.000015)? = ([\d.]+)\b",
        text,
    )
    assert len(found) == 3
    for *numbers, told in found:
        exports, values, further = (float(one.replace(",", "") or 0) for one in numbers)
        assert f"{cores(Load(exports, values, further)):.2f}" == told


def test_what_is_measured_between_exports_is_no_cheaper_than_a_further_value() -> None:
    each, fifth = (of_workers(512, GAUGES, interval_s) for interval_s in (1, 5))
    assert each == Load(512, 20_480)
    assert fifth == pytest.approx(Load(102.4, 4096, 16_384))
    saved = cores(each) - cores(fifth)
    assert saved == pytest.approx(409.6 * 1150e-6 - 16_384 * 13e-6)
