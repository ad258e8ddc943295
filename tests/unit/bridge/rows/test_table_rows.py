"""Text samples to tables."""

from collections.abc import Mapping, Sequence

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.table_rows import MAX_ROW_BYTES
from otel_rl.records import (
    CONSOLE,
    Decoded,
    Export,
    Measurements,
    Row,
    Series,
    Table,
    TextSample,
    Value,
    Worker,
)
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

RANK0 = Worker("trainer", "a", index=0, count=2)
RANK1 = Worker("trainer", "b", index=1, count=2)


def sample(
    worker: Worker,
    fields: Mapping[str, Value],
    *,
    step: int | None = 1,
    at_ns: int = 0,
    table: str = "samples",
    digest: int = 0,
) -> TextSample:
    return TextSample(worker, table, step, T0 + at_ns, fields, digest)


class Bench:
    """An aligner and a clock that tests move by hand."""

    def __init__(self, **settings: float) -> None:
        self.aligner = Run(AlignSettings.model_validate(settings))
        self.now_ns = T0

    def send(self, *samples: TextSample) -> None:
        workers = dict.fromkeys(one.worker for one in samples)
        exports = [Export(worker, 0) for worker in workers]
        self.aligner.add(Decoded((), exports, samples), received_ns=self.now_ns)

    def rows(self, after_s: float = 0, *, everything: bool = False) -> list[Row]:
        self.now_ns += int(after_s * S)
        rows = self.aligner.close(self.now_ns, everything=everything)
        # The others say who is there: see ``test_roster.py``.
        return [row for row in rows if row.tables or "trainer/samples" in row.values]


def tables(rows: Sequence[Row]) -> list[tuple[int, Mapping[str, Table]]]:
    return [(row.step, row.tables) for row in rows]


def test_the_samples_of_one_step_are_one_table() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"prompt": "p", "reward": 1.0}, at_ns=0))
    bench.send(sample(RANK1, {"prompt": "q", "reward": 0.5, "length": 3}, at_ns=1))
    table = Table(
        ["step", "prompt", "reward", "length", "worker"],
        [[1, "p", 1.0, None, "0"], [1, "q", 0.5, 3, "1"]],
    )
    assert tables(bench.rows(after_s=5)) == [(1, {"trainer/samples": table})]


def test_a_table_waits_for_the_other_workers() -> None:
    bench = Bench(window_s=5)
    bench.send(sample(RANK0, {"text": "a"}))
    assert bench.rows(after_s=4.9) == []
    assert bench.aligner.is_open
    assert len(bench.rows(after_s=0.1)) == 1
    assert not bench.aligner.is_open


def test_steps_and_names_have_tables_of_their_own() -> None:
    bench = Bench()
    bench.send(
        sample(RANK0, {"text": "a"}, step=1, at_ns=1),
        sample(RANK0, {"text": "b"}, step=2, at_ns=2),
        sample(RANK0, {"text": "c"}, step=2, at_ns=3, table="eval"),
    )
    found = [(step, [*named]) for step, named in tables(bench.rows(everything=True))]
    assert found == [(1, ["trainer/samples"]), (2, ["trainer/samples"]), (2, ["trainer/eval"])]


def test_a_sample_without_a_step_stands_at_the_step_in_progress() -> None:
    bench = Bench()
    loss = Measurements(Series(RANK0, "loss"), [T0], [0.5], [7])
    bench.aligner.add(Decoded([loss], [Export(RANK0, T0)]), received_ns=T0)
    bench.send(sample(RANK0, {"text": "a"}, step=None, at_ns=5))
    rows = bench.rows(everything=True)
    assert [(row.step, row.tables["trainer/samples"].rows) for row in rows if row.tables] == [
        (7, [[7, "a", "0"]])
    ]


def test_a_sample_that_comes_again_is_left_out_and_counted() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"text": "a"}, digest=1), sample(RANK0, {"text": "b"}, digest=2))
    bench.send(sample(RANK0, {"text": "a"}, digest=1))
    (row,) = bench.rows(everything=True)
    assert len(row.tables["trainer/samples"].rows) == 2
    assert (bench.aligner.sample_counts.taken, bench.aligner.sample_counts.duplicate) == (2, 1)


def test_a_sample_that_comes_again_after_a_restart_is_left_out() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"text": "a"}, digest=1))
    bench.rows(everything=True)
    log = bench.aligner.take_dedup()
    bench.aligner = revived(bench.aligner)
    assert log is not None
    bench.aligner.restore_dedup(log.body)
    bench.send(sample(RANK0, {"text": "a"}, digest=1))
    assert bench.rows(everything=True) == []
    assert bench.aligner.sample_counts.duplicate == 1


def test_samples_that_wait_survive_a_restart() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"text": "a"}))
    bench.aligner = revived(bench.aligner)
    assert len(bench.rows(everything=True)) == 1


def test_late_samples_make_another_table() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"text": "a"}, digest=1))
    bench.rows(after_s=5)
    bench.send(sample(RANK1, {"text": "b"}, digest=2))
    (row,) = bench.rows(after_s=5)
    assert row.tables["trainer/samples"].rows == [[1, "b", "1"]]


def test_what_does_not_fit_into_one_row_makes_several() -> None:
    bench = Bench()
    text = "x" * (MAX_ROW_BYTES // 2 + 1)
    for n in range(5):
        bench.send(sample(RANK0, {"text": text}, digest=n, at_ns=n))
    rows = bench.rows(everything=True)
    assert [len(row.tables["trainer/samples"].rows) for row in rows] == [2, 2, 1]


def test_a_field_may_not_take_the_place_of_step_or_worker() -> None:
    bench = Bench()
    bench.send(sample(RANK0, {"step": 99, "text": "a", "worker": "me"}))
    (row,) = bench.rows(everything=True)
    assert row.tables["trainer/samples"] == Table(["step", "text", "worker"], [[1, "a", "0"]])


def test_a_metric_and_a_table_of_one_name_have_keys_of_their_own() -> None:
    bench = Bench()
    length = Measurements(Series(RANK0, "samples"), [T0], [0.5], [1])
    bench.aligner.add(Decoded([length], [Export(RANK0, T0)]), received_ns=T0)
    bench.send(sample(RANK0, {"text": "a"}))
    rows = bench.rows(everything=True)
    keys = [key for row in rows for key in (*row.values, *row.tables) if "samples" in key]
    assert len(keys) == len(set(keys)) == 2


def test_samples_stand_in_order_of_time_however_they_came() -> None:
    bench = Bench(window_s=5)
    for at_ns, text in ((5, "c"), (1, "a"), (3, "b")):
        bench.send(sample(RANK0, {"text": text}, at_ns=at_ns, digest=at_ns))
    ((_, found),) = tables(bench.rows(6))
    ((_, table),) = found.items()
    assert [row[1] for row in table.rows] == ["a", "b", "c"]


def console(worker: Worker, text: str, *, at_ns: int, digest: int) -> TextSample:
    fields = {"log.iostream": "stdout", "text": text}
    return sample(worker, fields, step=None, at_ns=at_ns, table=CONSOLE, digest=digest)


def test_the_console_is_one_table_whose_lines_are_numbered_over_a_restart() -> None:
    bench = Bench()
    bench.send(console(RANK1, "c\n\x1b[2Jd", at_ns=2, digest=2))
    bench.send(console(RANK0, "a\nb\n", at_ns=1, digest=1))
    bench.send(console(RANK0, "a\nb\n", at_ns=1, digest=1))  # sent again
    (first,) = bench.rows(after_s=5)
    assert [line[0::2] for line in first.tables[CONSOLE].rows] == [
        [0, "trainer/0", "a"],
        [1, "trainer/0", "b"],
        [2, "trainer/1", "c"],
        [3, "trainer/1", "\\x1b[2Jd"],
    ]
    bench.aligner = revived(bench.aligner)
    bench.send(console(RANK0, "e", at_ns=3, digest=3))
    (second,) = bench.rows(everything=True)
    assert [line[0] for line in second.tables[CONSOLE].rows] == [4]
    assert second.number > first.number


def test_a_sample_of_a_trace_has_a_link_to_it_where_a_person_sees_traces() -> None:
    url = "http://jaeger:16686/trace/{trace_id}"
    bench = Bench()
    bench.aligner.intake.settings = AlignSettings(trace_url=url)
    bench.send(
        sample(RANK0, {"text": "a", "trace_id": "ab12"}), sample(RANK1, {"text": "b"}, at_ns=1)
    )
    ((_, found),) = tables(bench.rows(everything=True))
    assert found["trainer/samples"] == Table(
        ["step", "text", "trace_id", "trace_url", "worker"],
        [[1, "a", "ab12", "http://jaeger:16686/trace/ab12", "0"], [1, "b", None, None, "1"]],
    )


def test_samples_without_a_trace_or_with_a_link_of_their_own_stay_as_they_are() -> None:
    bench = Bench()
    bench.aligner.intake.settings = AlignSettings(trace_url="http://jaeger/{trace_id}")
    bench.send(sample(RANK0, {"text": "a"}))
    own = {"trace_id": "ab12", "trace_url": "mine"}
    bench.send(sample(RANK0, own, table="others", at_ns=1))
    found = {
        key: table for _, of in tables(bench.rows(everything=True)) for key, table in of.items()
    }
    assert found["trainer/samples"] == Table(["step", "text", "worker"], [[1, "a", "0"]])
    assert found["trainer/others"].rows == [[1, "ab12", "mine", "0"]]
