"""The formula by which docs/scale.md says how many cores a bridge needs, and its check."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from bench import foreign
from bench.figures import Figure
from bench.record import PartRecord
from bench.sparse_worker import GAUGES, MIXED, Instruments

FACTOR: Final = 1.4
"""By which a published figure may differ from the formula."""

_SPREAD: Final = 16  # measurements of a histogram in each second of a worker of the bench


class Load(NamedTuple):
    """What reaches a bridge in a second, from workers or through gateways.

    Attributes:
        exports: Of workers; a gateway that joins some of them saves a tenth.
        values: Gauges in the exports: the first value of each.
        further: More values of a gauge in one export: ``otel_rl`` sends each that was measured.
        counted: Measurements of counters and histograms of ``otel_rl``, which sends each.
        points: Data points of counters and histograms of stock SDKs.
    """

    exports: float
    values: float = 0.0
    further: float = 0.0
    counted: float = 0.0
    points: float = 0.0


COSTS_US: Final = Load(1150.0, 2.0, 15.0, 45.0, 14.0)
"""CPU microseconds of one of each, with the row and its JSON lines. No figure of the bench has
further values: 11 to 20 were measured by hand, on busy machines."""


def cores(load: Load) -> float:
    """Return how many cores a bridge takes, without writers of W&B, MLflow or Trackio."""
    return sum(n * us for n, us in zip(load, COSTS_US, strict=True)) * 1e-6


def of_workers(workers: float, of: Instruments, interval_s: float = 1.0) -> Load:
    """Return the load of workers of ``otel_rl`` that measure every second.

    Args:
        workers: How many.
        of: Series of each.
        interval_s: Seconds between two exports of a worker, from 1 on.
    """
    exports = workers / interval_s
    return Load(
        exports,
        values=exports * of.gauges,
        further=(workers - exports) * of.gauges,
        counted=workers * (of.counters + _SPREAD * of.histograms),
    )


def _of_stock(shape: foreign.Shape) -> Load:
    return Load(1, shape.gauges, points=shape.counters + shape.histograms)


_SHAPES: Final = {
    "one series": (of_workers(1, Instruments(1)), 1),
    "40 series": (of_workers(1, GAUGES), sum(GAUGES)),
    "40 series with counters and histograms": (of_workers(1, MIXED), sum(MIXED)),
}
"""Load of an export, and its samples, each of which has the figure's cost."""

_FIGURES: Final[Mapping[str, tuple[Load, float]]] = {
    **{
        f"sparse: request of {what}, bridge {where}": (load, samples * 1e-6)
        for what, (load, samples) in _SHAPES.items()
        for where in ("alone", "behind a gateway")
    },
    f"foreign: {foreign.LARGE} workers, gauges": (_of_stock(foreign.GAUGES), 1 / foreign.LARGE),
    f"foreign: {foreign.LARGE} workers, counters and histograms": (
        _of_stock(foreign.MIXED),
        1 / foreign.LARGE,
    ),
}
"""Load of one export, and what makes cores for one export a second of the figure's unit."""


def _found(records: Mapping[str, PartRecord]) -> Iterator[tuple[Figure, float, float]]:
    """Yield each figure of a bridge's CPU, with milliseconds of an export: measured, by formula."""
    for part in records.values():
        for figure in part.figures:
            if figure.name in _FIGURES:
                load, unit = _FIGURES[figure.name]
                yield figure, figure.ours * unit * 1e3, cores(load) * 1e3


def misses(records: Mapping[str, PartRecord]) -> Iterator[str]:
    """Yield a line for each figure that is not within ``FACTOR`` of the formula."""
    for figure, measured, expected in _found(records):
        if not 1 / FACTOR <= measured / expected <= FACTOR:
            yield f"{figure.name}: {measured:.3g} ms of an export, by the formula {expected:.3g}"


def table(records: Mapping[str, PartRecord]) -> Iterator[str]:
    """Yield the formula and the figures that it is fitted to, as Markdown."""
    exports, values, further, counted, points = COSTS_US
    yield from (
        "```text",
        f"cores = {exports / 1e6:g} x exports of workers per second",
        f"      + {values / 1e6:f} x gauges in these exports per second",
        f"      + {further / 1e6:f} x further values of a gauge in an export, per second",
        f"      + {counted / 1e6:f} x measurements of otel_rl's counters and histograms per second",
        f"      + {points / 1e6:f} x points of counters and histograms of stock SDKs per second",
        "```",
        "",
        "| measured: CPU of an export | ms | by the formula |",
        "|---|---|---|",
    )
    for figure, measured, expected in _found(records):
        yield f"| {figure.name} | {measured:.2f} | {expected:.2f} |"
