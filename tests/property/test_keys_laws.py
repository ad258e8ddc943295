"""Keys can be read back, W&B takes every one, and only one path has each."""

from typing import NamedTuple

from hypothesis import assume, example, given
from hypothesis import strategies as st

from otel_rl.bridge.journal.state import decode, encode
from otel_rl.bridge.keys import (
    MAX_KEY_BYTES,
    metric_path,
    read_key,
    tracker_key,
    worker_key,
)
from otel_rl.bridge.rows.series.series_table import StreamTable
from otel_rl.bridge.rows.series.table_state import StoredTable, TableState
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Series, Worker
from otel_rl.semconv.spec import Instrument, Reduction


class Metric(NamedTuple):
    role: str
    name: str
    attributes: dict[str, str]

    @property
    def key(self) -> str:
        return tracker_key(self.role, self.name, self.attributes.items())

    @property
    def path(self) -> tuple[str, ...]:
        return metric_path(self.role, self.name, self.attributes.items())


# Words that are near the edges of the rule, besides whatever Hypothesis comes upon.
EDGES = st.sampled_from(
    "_|x|_x|_x5f_|x_|_xh1a_|e9|é|/|.|..|-|0| |trainer|rl.|otel_rl.|hw.gpu.|rl.phase.".split("|")  # noqa: SIM905  # shorter so
)
FURTHER_EDGES = st.sampled_from(["*", "\\", "\n", "损"])
TEXT = st.lists(EDGES | FURTHER_EDGES | st.text(max_size=6), max_size=5).map("".join).filter(bool)
METRICS = st.builds(Metric, TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=3))


def is_uncut(key: str) -> bool:
    return len(key.encode()) <= MAX_KEY_BYTES - 40


@given(METRICS)
@example(Metric("_xa", "é", {}))
@example(Metric("x_", "_x1_x2_", {}))
@example(Metric("a", "_x5f_x61_", {}))
@example(Metric("a", "_x5 ", {}))
@example(Metric(" ", " a ", {"b": "_x5*"}))
def test_a_key_is_read_back_as_the_path_it_was_made_of(metric: Metric) -> None:
    assume(is_uncut(metric.key))
    assert read_key(metric.key) == metric.path


@given(METRICS, METRICS)
def test_two_metrics_have_one_key_only_if_they_have_one_path(one: Metric, other: Metric) -> None:
    assert (one.key == other.key) == (one.path == other.path)


@given(METRICS)
def test_every_key_is_one_that_wandb_takes(metric: Metric) -> None:
    assert metric.key[0].isalpha()
    assert metric.key.isprintable()
    assert not {"*", "\\"} & {*metric.key}
    assert all(part == part.strip(" ") != "" for part in metric.key.split("/"))
    assert metric.key not in {"step", "hours", "attempt", "policy_version"}
    assert len(metric.key.encode()) <= MAX_KEY_BYTES


@given(METRICS, st.integers(0, 9).map(str))
def test_a_workers_own_key_is_the_path_behind_the_worker(metric: Metric, label: str) -> None:
    assume(is_uncut(metric.key))
    role = tuple(part for part in metric.role.split("/") if part) or (metric.role,)
    head, rest = metric.path[: len(role)], metric.path[len(role) :]
    if head != role:
        head, rest = metric.path[:1], metric.path[1 + len(role) :]
        rest = (*head, *rest)
    key = worker_key(metric.role, label, metric.key)
    assert read_key(key) == ("workers", *role, label, *rest)


WORDS = st.sampled_from(["a", "a.b", "a/b", "a:b", "a.rate", "a.count", "a.p50", "a.b.max", "rl.a"])
SERIES = st.builds(
    Series,
    st.builds(Worker, role=st.sampled_from(["trainer", "a", "phase"]), instance=st.just("1")),
    WORDS,
    attributes=st.sampled_from([(), (("k", "b"),), (("l", "b"),), (("k", "max"),)]),
    reduction=st.sampled_from([None, Reduction.MAX]),
    instrument=st.sampled_from([Instrument.GAUGE, Instrument.COUNTER, Instrument.HISTOGRAM]),
)


@given(st.lists(SERIES, max_size=40))
def test_no_two_metrics_of_a_run_write_the_same_key(series: list[Series]) -> None:
    table, settings = StreamTable(), AlignSettings(per_worker=True)
    for one in series:
        table.stream(one, settings)
    for known in (
        table,
        StreamTable(TableState.restored(decode(encode(table.state.stored()), StoredTable))),
    ):
        written = [
            key
            for group in known.keys.groups
            for key in (
                group.key,
                *(f"{group.key}/{suffix}" for suffix in (*group.statistics, *group.extra)),
            )
        ]
        assert len(written) == len(set(written))
