"""What the stock SDKs of Python, Go and Node measure is in the run, and is what they measured.

Nothing of otel_rl is in the emitters. The bridge is the real one, and only the length of windows
and its patience are not the defaults; the Collector that scrapes is the real one, too.
"""

import json
import math
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.emitters import Emitter, Kind
from tests.lab.programs import EMITTER_NODE, EMITTERS
from tests.lab.running import Bridge, Collector
from tests.lab.site import QUICK, History, history_of
from tests.process.commands import Row, clean_environment, jsonl_rows, otel_rl
from tests.support.ports import free_ports
from tests.support.slow import slow_after

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

KINDS = [
    Kind("python", "cumulative"),
    Kind("python", "delta", "grpc"),
    Kind("go", "cumulative", "grpc"),
    Kind("go", "delta"),
    Kind("node", "cumulative", "http/json"),
    Kind("node", "delta"),
]
SOME = [Kind("python"), Kind("go"), Kind("node"), Kind("go", "delta")]

EXPERIMENT = "foreign"
ROLE = "emitter"
STEP = "rl.loop.iteration"
ARRIVES_S = 180.0


# Nothing waits for it: a window is over when all have come past it, or the bridge ends. But how
# fast six processes start on a busy machine must not make anything late.
PATIENT = "wait = 600\nworker_timeout = 600"


def one_window() -> str:
    """Settings with which all of a run is one window: it has begun a minute ago, for an hour."""
    begun_s = time.time() - 60
    return f"""
[rows]
window = {begun_s / math.ceil(begun_s / 3600)!r}
{PATIENT}
per_worker = true

[telemetry]
interval = 0.5
"""


MANY_WINDOWS = f"""
[rows]
window = 0.5
{PATIENT}
per_worker = true

[telemetry]
interval = 0.5
"""


@pytest.fixture(scope="module", autouse=True)
def the_emitters_are_built() -> None:
    missing = [program for program in EMITTERS if not program.is_built()]
    if missing:
        sentence = "the emitters in Go and JavaScript are not built: run `make lab` once"
        if os.environ.get("OTEL_RL_LAB") == "required":
            pytest.fail(f"{sentence} (OTEL_RL_LAB=required).", pytrace=False)
        pytest.skip(f"{sentence}.")


def resource(trial: str, instance: str, **more: object) -> dict[str, str]:
    named = {
        "rl.experiment.name": EXPERIMENT,
        "rl.trial.name": trial,
        "rl.worker.role": ROLE,
    }
    if instance:
        named["service.instance.id"] = instance
    return named | {f"rl.worker.{key}": str(value) for key, value in more.items()}


@dataclass(frozen=True)
class Site:
    """A bridge, and a directory for whatever reports to it."""

    bridge: Bridge
    directory: Path

    def emitter(self, kind: Kind, trial: str, instance: str, **more: object) -> Emitter:
        http, grpc = self.bridge.ports
        port = grpc if kind.protocol == "grpc" else http
        named = resource(trial, instance, **more)
        return Emitter(kind, f"http://127.0.0.1:{port}", named, self.directory)

    def stop(self) -> None:
        """End the bridge, so that everything is in the run."""
        assert self.bridge.stop() == 0, self.bridge.said()

    def rows(self, trial: str) -> Sequence[Row]:
        """All of a run."""
        return jsonl_rows(self.bridge.directory, EXPERIMENT, trial)


@contextmanager
def site_at(directory: Path, settings: str) -> Iterator[Site]:
    bridge = Bridge(directory / "bridge", settings)
    with bridge:
        yield Site(bridge, directory)


def values(rows: Sequence[Row], key: str) -> list[float]:
    return [row.values[key] for row in rows if key in row.values]


def last(rows: Sequence[Row], key: str) -> float:
    found = values(rows, key)
    assert found, sorted({key for row in rows for key in row.reported})
    return found[-1]


def by_step(rows: Sequence[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


def troubles(rows: Sequence[Row]) -> dict[str, float]:
    """What the bridge says it has left out, refused, or had too late."""
    said: dict[str, float] = {}
    for row in rows:
        said |= {key: value for key, value in row.values.items() if "otel_rl/bridge/" in key}
    assert said, "the bridge has said nothing of itself"
    bad = ("late", "dropped", "refused", "exceptions", "too_old")
    return {key: value for key, value in said.items() if value and any(word in key for word in bad)}


# What each emitter measures: the same values, in as many batches as there are steps, by two
# processes one after the other.

STEPS = range(1, 9)
FIRST_LIFE, SECOND_LIFE = STEPS[:4], STEPS[4:]

DRAWN = random.Random(13)
# Each process is quick at first, so that its first export says nothing of the extremes to come.
TOOK = {
    step: [DRAWN.lognormvariate(1.5 if step in {1, 5} else 4.4, 0.9) for _ in range(60)]
    for step in STEPS
}
ALL_TOOK = [value for step in STEPS for value in TOOK[step]]
TOKENS = {step: [DRAWN.randrange(1, 1000) for _ in range(5)] for step in STEPS}
DEPTH = {step: [DRAWN.randrange(1, 9), -DRAWN.randrange(0, 4)] for step in STEPS}
CPU = {step: 100.5 * step for step in STEPS}


def loss(step: int, index: int) -> float:
    return round(1 / step + index / 8, 6)


def measure(emitter: Emitter, step: int, index: int, life: Sequence[int]) -> None:
    emitter.measure("gauge", "loss", loss(step, index), **{STEP: step})
    emitter.measure("gauge", "temperature", 20.5 + step + index)
    emitter.measure("counter", "tokens", *TOKENS[step])
    emitter.measure("up_down_counter", "depth", *DEPTH[step])
    emitter.measure("observable_counter", "cpu", CPU[step] - CPU.get(life[0] - 1, 0))
    emitter.measure("observable_gauge", "memory", 1000.0 + step)
    emitter.measure("histogram", "took", *TOOK[step])
    emitter.measure("histogram", "took.exponential", *TOOK[step])
    emitter.flush()


@dataclass(frozen=True)
class Measured:
    """The run of all emitters side by side."""

    rows: Sequence[Row]
    said: str


@pytest.fixture(scope="module", params=slow_after(1, ["one", "many"]))
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    directory = tmp_path_factory.mktemp("measured")
    settings = one_window() if request.param == "one" else MANY_WINDOWS
    with site_at(directory, settings) as site:
        for life in (FIRST_LIFE, SECOND_LIFE):
            emitters = [
                site.emitter(kind, "all", f"pod-{index}", index=index, count=len(KINDS))
                for index, kind in enumerate(KINDS)
            ]
            with ExitStack() as stack:
                for emitter in emitters:
                    stack.enter_context(emitter)
                for step in life:
                    for index, emitter in enumerate(emitters):
                        measure(emitter, step, index, life)
                for emitter in emitters:
                    emitter.end()
        site.stop()
        rows = site.rows("all")
        return Measured(rows, "".join(emitter.said() for emitter in emitters))


@pytest.fixture
def rows(measured: Measured) -> Sequence[Row]:
    return measured.rows


def of(kind: Kind, name: str) -> str:
    return f"workers/{ROLE}/{KINDS.index(kind)}/{name}"


def test_nothing_is_late_dropped_or_refused(measured: Measured) -> None:
    assert troubles(measured.rows) == {}
    assert measured.said == ""


def test_each_step_is_one_row(rows: Sequence[Row]) -> None:
    n = len(KINDS)
    steps, losses = zip(*by_step(rows, f"{ROLE}/loss"), strict=True)
    assert steps == tuple(STEPS)
    assert losses == pytest.approx([sum(loss(s, i) for i in range(n)) / n for s in STEPS])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_step_of_a_worker_is_one_row(rows: Sequence[Row], kind: Kind) -> None:
    index = KINDS.index(kind)
    assert by_step(rows, of(kind, "loss")) == [(step, loss(step, index)) for step in STEPS]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_level_ends_as_it_was_set_last(rows: Sequence[Row], kind: Kind) -> None:
    assert last(rows, of(kind, "temperature")) == 20.5 + STEPS[-1] + KINDS.index(kind)
    assert last(rows, of(kind, "memory")) == 1000.0 + STEPS[-1]
    assert last(rows, of(kind, "depth")) == sum(sum(DEPTH[step]) for step in SECOND_LIFE)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_counter_ends_at_what_was_counted(rows: Sequence[Row], kind: Kind) -> None:
    assert last(rows, of(kind, "tokens")) == sum(map(sum, TOKENS.values()))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_observed_counter_ends_at_what_was_counted(rows: Sequence[Row], kind: Kind) -> None:
    assert last(rows, of(kind, "cpu")) == CPU[STEPS[-1]]


def test_the_totals_of_a_role_are_those_of_its_workers(rows: Sequence[Row]) -> None:
    assert last(rows, f"{ROLE}/tokens") == len(KINDS) * sum(map(sum, TOKENS.values()))


def weighted(rows: Sequence[Row], key: str) -> float:
    """The mean over all windows."""
    windows = [row.values for row in rows if key in row.values]
    total = sum(row[key] * row[f"{key}/count"] for row in windows)
    return total / sum(row[f"{key}/count"] for row in windows)


@pytest.mark.parametrize("name", ["took", "took/exponential"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_count_and_mean_of_a_histogram_are_exact(
    rows: Sequence[Row], kind: Kind, name: str
) -> None:
    key = of(kind, name)
    assert sum(values(rows, f"{key}/count")) == len(ALL_TOOK)
    assert weighted(rows, key) == pytest.approx(np.mean(ALL_TOOK), rel=1e-9)


@pytest.mark.parametrize("name", ["took", "took/exponential"])
def test_the_count_and_mean_of_a_role_are_exact(rows: Sequence[Row], name: str) -> None:
    key = f"{ROLE}/{name}"
    assert sum(values(rows, f"{key}/count")) == len(KINDS) * len(ALL_TOOK)
    assert weighted(rows, key) == pytest.approx(np.mean(ALL_TOOK), rel=1e-9)


# The default bounds of explicit buckets, the same in all SDKs.
BOUNDS = (-math.inf, 0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000)
# 160 buckets of at most 9 % width span 20 powers of two, and the values fewer.
WIDTH = 2 ** (1 / 8)

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def bucket_of(value: float) -> tuple[float, float]:
    return next((low, high) for low, high in pairwise(BOUNDS) if value <= high)


def true_quantile(q: float) -> float:
    return float(np.quantile(ALL_TOOK, q, method="inverted_cdf"))


def test_the_drawn_values_suit_the_buckets() -> None:
    assert max(ALL_TOOK) / min(ALL_TOOK) < 2**20
    assert len({bucket_of(true_quantile(q)) for q in QUANTILES.values()}) == len(QUANTILES)
    # So no estimate is clamped, and none depends on the extremes.
    assert bucket_of(true_quantile(0.99)) != bucket_of(max(ALL_TOOK))


@pytest.mark.parametrize("measured", ["one"], indirect=True)
@pytest.mark.parametrize("key", [*(f"workers/{ROLE}/{i}" for i in range(len(KINDS))), ROLE])
@pytest.mark.parametrize("statistic", QUANTILES)
class TestQuantiles:
    def test_of_explicit_buckets_are_in_the_bucket_of_the_true_value(
        self, rows: Sequence[Row], key: str, statistic: str
    ) -> None:
        low, high = bucket_of(true_quantile(QUANTILES[statistic]))
        assert low <= last(rows, f"{key}/took/{statistic}") <= high

    def test_of_exponential_buckets_are_within_9_percent(
        self, rows: Sequence[Row], key: str, statistic: str
    ) -> None:
        true = true_quantile(QUANTILES[statistic])
        assert true / WIDTH <= last(rows, f"{key}/took/exponential/{statistic}") <= true * WIDTH


@pytest.mark.parametrize("measured", ["one"], indirect=True)
@pytest.mark.parametrize("statistic", QUANTILES)
def test_quantiles_are_the_same_in_all_languages_and_temporalities(
    rows: Sequence[Row], statistic: str
) -> None:
    found = {str(kind): last(rows, of(kind, f"took/{statistic}")) for kind in KINDS}
    assert found == dict.fromkeys(found, pytest.approx(found["go-delta"], rel=1e-9))


@pytest.mark.parametrize("name", ["took", "took/exponential"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.temporality == "delta"], ids=str)
def test_the_extremes_of_delta_histograms_are_the_true_ones(
    rows: Sequence[Row], kind: Kind, name: str
) -> None:
    assert max(values(rows, f"{of(kind, name)}/max")) == max(ALL_TOOK)
    assert min(values(rows, f"{of(kind, name)}/min")) == min(ALL_TOOK)


# A cumulative point does not say which of its extremes are new, so there may be none.
@pytest.mark.parametrize("measured", ["one"], indirect=True)
@pytest.mark.parametrize("name", ["took", "took/exponential"])
@pytest.mark.parametrize("key", [*(f"workers/{ROLE}/{i}" for i in range(len(KINDS))), ROLE])
def test_extremes_that_are_written_are_the_true_ones(
    rows: Sequence[Row], key: str, name: str
) -> None:
    assert set(values(rows, f"{key}/{name}/max")) <= {max(ALL_TOOK)}
    assert set(values(rows, f"{key}/{name}/min")) <= {min(ALL_TOOK)}


def test_no_quantile_is_outside_of_the_extremes_of_its_row(rows: Sequence[Row]) -> None:
    keys = {key.removesuffix("/p50") for row in rows for key in row.values if key.endswith("/p50")}
    for row in rows:
        for key in keys & row.values.keys():
            named = [row.values.get(f"{key}/{name}") for name in ("min", *QUANTILES, "max")]
            there = [value for value in named if value is not None]
            assert there == sorted(there), (key, named)
            smallest, largest = row.values.get(f"{key}/min"), row.values.get(f"{key}/max")
            assert smallest is None or smallest <= row.values[key], (key, row.values)
            assert largest is None or row.values[key] <= largest, (key, row.values)


# What goes wrong between two processes, or within one. Each happens in a run of its own.

UNLIKE: list[tuple[object, str]] = [(1, "1"), (True, "true"), (["a", "b"], "a,b")]
FEW_STEPS = range(1, 11)
MANY_STEPS = range(1, 101)
ALL_STEPS = range(1, 601)


def one_of_two_is_new(site: Site, kind: Kind) -> None:
    with site.emitter(kind, f"new-{kind}", "old") as old:
        for _ in range(10):
            for name in ("took", "took.exponential"):
                old.measure("histogram", name, *[1000.0] * 10)
            old.flush()
        with site.emitter(kind, f"new-{kind}", "new") as new:
            for name in ("took", "took.exponential"):
                new.measure("histogram", name, 10.0)
            new.end()
        old.end()


def the_old_one_hangs_on(site: Site, kind: Kind) -> None:
    with site.emitter(kind, f"overlap-{kind}", "pod", index=0) as old:
        old.measure("counter", "tokens", 5000)
        old.measure("histogram", "took", *[40.0] * 50)
        old.flush()
        with site.emitter(kind, f"overlap-{kind}", "pod", index=0) as new:
            for step in FEW_STEPS:
                new.measure("counter", "tokens", 10)
                new.measure("histogram", "took", 80.0)
                new.measure("gauge", "loss", step + 0.5, **{STEP: step})
                new.flush()
                old.measure("counter", "tokens", 0)
                old.measure("gauge", "loss", step, **{STEP: step})
                old.flush()
            old.measure("counter", "tokens", 7)
            old.measure("histogram", "took", 40.0)
            old.end()
            new.end()


def attributes_look_alike(site: Site, kind: Kind) -> None:
    with site.emitter(kind, f"alike-{kind}", "one") as emitter:
        for step in range(1, 4):
            for number, pair in enumerate(UNLIKE):
                for place, value in enumerate(pair):
                    emitter.measure("gauge", f"loss{number}", step + place, k=value, **{STEP: step})
                    emitter.measure("counter", f"tokens{number}", [5, 8][place], k=value)
                    emitter.measure("histogram", f"took{number}", 10.0, k=value)
            emitter.flush()
        emitter.flush()
        emitter.end()


def everything_has_a_step(site: Site, kind: Kind) -> None:
    with site.emitter(kind, f"steps-{kind}", "one") as emitter:
        for step in MANY_STEPS:
            emitter.measure("counter", "tokens", step, **{STEP: step})
            emitter.measure("histogram", "took", 10.0, **{STEP: step})
            if step % 10 == 0:
                emitter.flush()
        emitter.measure("gauge", "loss", 0.5, **{STEP: MANY_STEPS[-1]})
        emitter.end()


def nobody_has_a_name(site: Site, kind: Kind) -> None:
    """Go and Node give a process no ``service.instance.id`` unless they are told to."""
    with ExitStack() as stack:
        emitters = [
            stack.enter_context(site.emitter(kind, f"nameless-{kind}", "")) for _ in "12345678"
        ]
        for step in FEW_STEPS:
            for place, emitter in enumerate(emitters):
                emitter.measure("gauge", "loss", step + place / 8, **{STEP: step})
                emitter.measure("counter", "tokens", 10)
                emitter.measure("histogram", "took", 50.0)
                emitter.flush()
        for emitter in emitters:
            emitter.end()


def an_export_has_many_steps(site: Site, kind: Kind) -> None:
    """The default interval is a minute. The second process begins at an earlier step."""
    for life in (ALL_STEPS, ALL_STEPS[200:400]):
        with site.emitter(kind, f"minute-{kind}", "pod", index=0) as emitter:
            for step in life:
                emitter.measure("counter", "tokens", 1, **{STEP: step})
                emitter.measure("histogram", "took", 10.0, **{STEP: step})
            emitter.flush()
            emitter.end()


def training_diverges(site: Site, kind: Kind) -> None:
    with site.emitter(kind, f"diverges-{kind}", "one") as emitter:
        for step, loss in enumerate([0.5, math.nan, math.inf, 0.25], 1):
            emitter.measure("gauge", "loss", loss, **{STEP: step})
            emitter.flush()
        emitter.end()


DIVERGING = [Kind("go"), Kind("node"), Kind("node", "cumulative", "http/json")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[Row]]:
    """The rows of all of these, by their trials."""
    told = {
        "new": one_of_two_is_new,
        "overlap": the_old_one_hangs_on,
        "alike": attributes_look_alike,
        "steps": everything_has_a_step,
        "nameless": nobody_has_a_name,
        "minute": an_export_has_many_steps,
    }
    few_series = one_window().replace("[rows]", f"[rows]\nmax_series = {len(MANY_STEPS) // 2}")
    with site_at(tmp_path_factory.mktemp("runs"), few_series) as site:
        for kind in SOME:
            for tell in told.values():
                tell(site, kind)
        for kind in DIVERGING:
            training_diverges(site, kind)
        names = [f"{name}-{kind}" for name in told for kind in SOME]
        names += [f"diverges-{kind}" for kind in DIVERGING]
        site.stop()
        return {name: site.rows(name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_one_quick_value_of_a_new_worker_does_not_hide_a_hundred_slow_ones(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    rows = runs[f"new-{kind}"]
    for name, low, high in (("took", 750, 1000), ("took/exponential", 1000 / 1.1, 1000 * 1.1)):
        assert values(rows, f"{ROLE}/{name}/count") == [101]
        assert values(rows, f"{ROLE}/{name}") == [pytest.approx((100 * 1000 + 10) / 101)]
        for statistic in QUANTILES:
            assert low <= last(rows, f"{ROLE}/{name}/{statistic}") <= high


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_an_old_process_that_hangs_on_and_the_new_one_of_its_name_count_once_each(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    rows = runs[f"overlap-{kind}"]
    assert last(rows, f"{ROLE}/tokens") == 5000 + 10 * 10 + 7
    assert values(rows, f"{ROLE}/took/count") == [50 + 10 + 1]
    assert values(rows, f"{ROLE}/took") == [pytest.approx((51 * 40 + 10 * 80) / 61)]
    # Two measurements of a step are at most two rows.
    told = Counter(step for step, _ in by_step(rows, f"{ROLE}/loss"))
    assert told.keys() == set(FEW_STEPS)
    assert max(told.values()) <= 2


@pytest.mark.parametrize("number", range(len(UNLIKE)))
@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_attributes_that_look_alike_as_text_are_two_series(
    runs: Mapping[str, Sequence[Row]], kind: Kind, number: int
) -> None:
    rows = runs[f"alike-{kind}"]
    totals: dict[str, float] = {}
    losses: dict[int, list[float]] = {}
    counts: list[float] = []
    # The two may be reduced into one key, or stand side by side.
    for row in rows:
        for key, value in row.reported.items():
            if key.startswith(f"{ROLE}/tokens{number}/") and not key.endswith("/rate"):
                totals[key] = value
            elif key.startswith(f"{ROLE}/loss{number}/"):
                losses.setdefault(row.step, []).append(value)
            elif key.startswith(f"{ROLE}/took{number}/") and key.endswith("/count"):
                counts.append(value)
    assert sum(totals.values()) == 3 * 13
    means = {step: sum(found) / len(found) for step, found in losses.items()}
    assert means == {step: step + 0.5 for step in range(1, 4)}
    assert sum(counts) == 6


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_a_step_on_a_counter_or_histogram_makes_no_series(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    rows = runs[f"steps-{kind}"]
    assert by_step(rows, f"{ROLE}/loss") == [(MANY_STEPS[-1], 0.5)]
    assert last(rows, f"{ROLE}/tokens") == sum(MANY_STEPS)
    assert sum(values(rows, f"{ROLE}/took/count")) == len(MANY_STEPS)
    assert troubles(rows) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_processes_without_a_name_of_their_own_count_once_each(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    rows = runs[f"nameless-{kind}"]
    assert last(rows, f"{ROLE}/tokens") == 8 * 10 * len(FEW_STEPS)
    assert sum(values(rows, f"{ROLE}/took/count")) == 8 * len(FEW_STEPS)
    told = Counter(step for step, _ in by_step(rows, f"{ROLE}/loss"))
    assert told.keys() == set(FEW_STEPS)
    assert max(told.values()) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME, ids=str)
def test_a_minute_of_steps_in_one_export_counts_whole_also_after_a_restart_at_an_earlier_step(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    rows = runs[f"minute-{kind}"]
    assert last(rows, f"{ROLE}/tokens") == len(ALL_STEPS) + 200
    assert sum(values(rows, f"{ROLE}/took/count")) == len(ALL_STEPS) + 200


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVERGING, ids=str)
def test_a_loss_that_is_no_number_is_none_in_the_run(
    runs: Mapping[str, Sequence[Row]], kind: Kind
) -> None:
    first, second, third, fourth = by_step(runs[f"diverges-{kind}"], f"{ROLE}/loss")
    assert (first, fourth) == ((1, 0.5), (4, 0.25))
    assert math.isnan(second[1])
    # JSON as JavaScript writes it knows neither of the two.
    assert math.isnan(third[1]) if kind.protocol == "http/json" else third[1] == math.inf


# What is scraped: the receiver knows no start, and gives none.

SCRAPING = """
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: foreign
          scrape_interval: 500ms
          scrape_timeout: 500ms
          static_configs:
            - targets: ["{address}"]
              labels:
                rl.experiment.name: foreign
                rl.trial.name: scraped
                rl.worker.role: emitter
"""


@dataclass(frozen=True)
class Scraped:
    """The run of a program that a Collector scrapes, while it goes on."""

    site: Site

    @property
    def history(self) -> History:
        file = f"{run_id(EXPERIMENT, 'scraped')}.jsonl"
        return history_of(self.site.bridge.directory / "data" / file)

    def total(self) -> float:
        return max((row[TOTAL] for row in self.history if TOTAL in row), default=0)

    def levels(self) -> int:
        return sum(f"{ROLE}/temperature" in row for row in self.history)

    def look_again(self) -> None:
        """Wait until what stands on the page is in the run."""
        seen = self.levels()
        assert wait_for(lambda: self.levels() > seen + 1, ARRIVES_S)

    def count(self, emitter: Emitter, n: int) -> None:
        """Let it count, and wait until that is in the run."""
        before = self.total()
        emitter.measure("counter", "tokens", n)
        emitter.measure("histogram", "took", *[50.0] * n)
        assert wait_for(lambda: self.total() > before, ARRIVES_S), self.total()


TOTAL = f"{ROLE}/tokens_total"


@pytest.mark.slow
def test_what_is_scraped_counts_once_over_restarts_of_the_collector_and_of_the_target(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with site_at(tmp_path, MANY_WINDOWS) as site:
        settings = {
            "OTEL_RL_GATEWAY_URL": site.bridge.url,
            "OTEL_RL_EXPERIMENT": EXPERIMENT,
            "OTEL_RL_TRIAL": "node",
        }
        overlay = SCRAPING.format(address=address) + QUICK.format(exporter="otlp_http/gateway")
        agent, scraped = Collector("agent", tmp_path / "agent", settings, overlay), Scraped(site)

        def target() -> Emitter:
            return Emitter(Kind("go"), "", {}, tmp_path, "prometheus", address)

        with agent:
            with target() as emitter:
                emitter.measure("gauge", "temperature", 1.0)
                emitter.measure("counter", "tokens", 1000)
                emitter.measure("histogram", "took", *[10.0] * 1000)
                scraped.look_again()
                scraped.count(emitter, 7)
                scraped.count(emitter, 3)
                agent.stop()
                agent.start()
                scraped.look_again()
                scraped.count(emitter, 2)
            with target() as emitter:
                scraped.count(emitter, 4)
                emitter.measure("gauge", "temperature", 1.0)
                scraped.look_again()
        site.stop()
        rows = site.rows("scraped")
    counted = 7 + 3 + 2 + 4
    assert last(rows, TOTAL) == counted
    assert sum(values(rows, f"{ROLE}/took/count")) == counted
    assert weighted(rows, f"{ROLE}/took") == pytest.approx(50.0)
    assert troubles(rows) == {}


class Page(ThreadingHTTPServer):
    """A page of metrics in the format OpenMetrics, with the times since which they count."""

    def __init__(self) -> None:
        self.text = ""
        super().__init__(("127.0.0.1", 0), PageHandler)

    def show(self, tokens: int, *, since_s: float) -> None:
        """Count, since the process has started."""
        lines = [
            "# TYPE tokens counter",
            f"tokens_total {tokens}",
            f"tokens_created {since_s:.3f}",
            "# TYPE temperature gauge",
            f"temperature {tokens}",
            "# EOF",
        ]
        self.text = "".join(f"{line}\n" for line in lines)


class PageHandler(BaseHTTPRequestHandler):
    """Answers with the page as it is."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Page)
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_a_scraped_process_that_is_older_than_the_run_counts_since_the_first_scrape(
    tmp_path: Path,
) -> None:
    hour_ago_s = time.time() - 3600
    with Page() as page, site_at(tmp_path, MANY_WINDOWS) as site:
        Thread(target=page.serve_forever).start()
        settings = {
            "OTEL_RL_GATEWAY_URL": site.bridge.url,
            "OTEL_RL_EXPERIMENT": EXPERIMENT,
            "OTEL_RL_TRIAL": "node",
        }
        address = f"127.0.0.1:{page.server_port}"
        overlay = SCRAPING.format(address=address) + QUICK.format(exporter="otlp_http/gateway")
        scraped = Scraped(site)
        page.show(5000, since_s=hour_ago_s)
        try:
            with Collector("agent", tmp_path / "agent", settings, overlay):
                scraped.look_again()
                page.show(5007, since_s=hour_ago_s)
                assert wait_for(lambda: scraped.total() >= 7, ARRIVES_S)
                # It starts again, and has counted when it is scraped for the first time.
                page.show(4, since_s=time.time())
                assert wait_for(lambda: scraped.total() >= 7 + 4, ARRIVES_S)
                scraped.look_again()
        finally:
            page.shutdown()
        site.stop()
        assert last(site.rows("scraped"), TOTAL) == 7 + 4


# The examples in other languages, as their readers run them.

EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPORALITIES = ["cumulative", "delta"]


def run_example(directory: Path, temporality: str, *command: str | Path) -> Sequence[Row]:
    preference = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality}
    arguments = ["run", "--experiment", EXPERIMENT, "--role", ROLE, "--tracker", "jsonl", "--"]
    environment = clean_environment(directory, **preference)
    done = otel_rl(*arguments, *command, cwd=directory, env=environment)
    assert done.status == 0, done
    return jsonl_rows(directory, EXPERIMENT)


def assert_is_reported(rows: Sequence[Row]) -> None:
    assert by_step(rows, f"{ROLE}/reward") == [(step, step / 4) for step in range(1, 6)]
    assert last(rows, f"{ROLE}/tokens") == 5 * 4096
    assert troubles(rows) == {}


@pytest.fixture(scope="module")
def go_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = shutil.copytree(EXAMPLES / "go", tmp_path_factory.mktemp("go") / "source")
    built = source.parent / "generator"
    # As `make lab` builds the emitter, so that what the two share is compiled already.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(built), "."]
    subprocess.run(command, cwd=source, env=environment, check=True)
    return built


@pytest.mark.parametrize("temporality", TEMPORALITIES)
def test_the_go_example_reports_what_it_says(
    tmp_path: Path, go_example: Path, temporality: str
) -> None:
    assert_is_reported(run_example(tmp_path, temporality, go_example))


@pytest.mark.parametrize("temporality", slow_after(1, TEMPORALITIES))
def test_the_node_example_reports_what_it_says(tmp_path: Path, temporality: str) -> None:
    (tmp_path / "node_modules").symlink_to(EMITTER_NODE.path.parent / "node_modules")
    shutil.copy(EXAMPLES / "node" / "generator.mjs", tmp_path)
    assert_is_reported(run_example(tmp_path, temporality, "node", "generator.mjs"))


def test_the_node_example_needs_the_packages_that_are_tested() -> None:
    lab = Path(__file__).parent / "emitters" / "node" / "package.json"
    tested = json.loads(lab.read_text())["dependencies"]
    needed = json.loads((EXAMPLES / "node" / "package.json").read_text())["dependencies"]
    assert needed
    assert needed.items() <= tested.items()
