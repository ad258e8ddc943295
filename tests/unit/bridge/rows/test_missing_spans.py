"""Critical paths are marked, and the run is told, where spans are sampled on the way."""

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from otel_rl.bridge.journal.state import decode, encode
from otel_rl.bridge.rows.messages import SAMPLED
from otel_rl.bridge.rows.missing_spans import Gaps, MissingSpans
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.bridge.rows.spans import SpanWindow
from otel_rl.records import Decoded, Worker
from otel_rl.semconv.spec import BLOCK_STEPS
from tests.unit.bridge.rows.steps.test_partial_steps import GENERATOR, T0, TRAINER, Bench, S, step

STEPS = range(80)
DRAWN = random.Random(7)
AT_RANDOM = {number for number in STEPS if DRAWN.random() < 0.5}


def run(spanned: Collection[int], *, sampled: Mapping[Worker, Collection[int]] = {}) -> Bench:
    """A run of which all steps are measured, and only some have spans.

    Args:
        spanned: Steps with spans.
        sampled: Steps in which a span of a worker says that it is sampled.
    """
    bench = Bench()
    for number in STEPS:
        spans = step(number) if number in spanned else []
        measured = bench.measured(number + 1, number)
        marks = {worker: bench.at_ns(number) for worker, of in sampled.items() if number in of}
        found = Decoded(measured, (), spans=spans, sampled=marks)
        bench.aligner.add(found, received_ns=bench.at_ns(number + 1))
        bench.hear(number + 1, TRAINER, GENERATOR)
    bench.hear(STEPS[-1] + 1.5, leaving=[TRAINER, GENERATOR])
    bench.look(STEPS[-1] + 2, everything=True)
    return bench


def told(bench: Bench) -> list[str]:
    return [row.labels[SAMPLED] for row in bench.rows if SAMPLED in row.labels]


def test_steps_whose_spans_are_dropped_at_random_are_told_once_with_their_number() -> None:
    (words,) = told(run(AT_RANDOM))
    assert re.match(r"Of \d+ steps \d+ lack spans", words)


def test_paths_of_a_run_with_spans_dropped_at_random_are_partial() -> None:
    partial = run(AT_RANDOM).partial()
    late = [missed for number, missed in partial.items() if number > 40]
    assert late
    assert set(late) == {2.0}  # of both workers


def test_a_run_with_the_spans_of_all_steps_is_told_nothing() -> None:
    bench = run(STEPS)
    assert told(bench) == []
    assert set(bench.partial().values()) == {None}


@pytest.mark.parametrize("kept", [{0, 3, 4, 6}, {1, 9}, {5}])
def test_whole_blocks_of_steps_as_workers_keep_them_lack_nothing(kept: set[int]) -> None:
    spanned = [number for number in STEPS if number // BLOCK_STEPS in kept]
    bench = run(spanned)
    assert told(bench) == []
    assert set(bench.partial().values()) == {None}


def test_a_rank_whose_steps_are_dropped_is_named_beside_the_others() -> None:
    found = MissingSpans()
    for rank, steps in (("a", range(1, 11)), ("b", [1, 2, 4, 8, 9, 10]), ("late", [7, 8, 9])):
        found.add([replace(step(number)[0], worker=rank) for number in steps])
    gaps = found.gaps("trainer", range(1, 11), range(1, 11))
    assert gaps.lacking == {3: ["b"], 5: ["b"], 6: ["b"], 7: ["b"]}
    assert gaps.is_a_rule


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param({"a": range(0, 60, 2), "b": range(1, 60, 2)}, id="in turns"),
        pytest.param({"a": range(60), "b": range(0, 60, 10)}, id="every tenth"),
        pytest.param({"a": [*range(60), *range(5)], "b": range(60)}, id="one begins again"),
        pytest.param({"a": range(60), "b": [*range(10, 60), *range(10)]}, id="a late batch"),
        pytest.param({"a": range(60), "b": range(40, 60)}, id="joins late"),
    ],
)
def test_ranks_that_make_a_span_of_each_of_their_steps_lack_nothing(
    steps: dict[str, Sequence[int]],
) -> None:
    found = MissingSpans()
    for rank, of in steps.items():
        found.add([replace(step(number)[0], worker=rank) for number in of])
    assert found.gaps("trainer", range(60), range(60)) == Gaps(compared=60)


def test_a_span_of_every_tenth_step_that_is_measured_is_no_sampling() -> None:
    assert told(run(STEPS[::10])) == []


def test_a_rank_that_was_away_for_a_while_lacks_spans_and_is_not_sampled() -> None:
    found = MissingSpans()
    for rank, steps in (("a", range(60)), ("b", [*range(20), *range(55, 60)])):
        found.add([replace(step(number)[0], worker=rank) for number in steps])
    gaps = found.gaps("trainer", range(60), range(60))
    assert gaps.lacking == {number: ["b"] for number in range(20, 55)}
    assert not gaps.is_a_rule


def test_steps_of_a_rank_that_came_late_and_left_wait_and_lack_nothing() -> None:
    bench = Bench()
    for number in STEPS:
        late = number - 8  # its spans come after those of the others
        spans = step(number)
        if 0 <= late <= 30:
            root = step(late)[0]
            spans.append(replace(root, span_id=root.span_id + b"/other", worker="trainer-1"))
        bench.hear(number + 1, TRAINER, GENERATOR, spans=spans)
    bench.look(STEPS[-1] + 20, everything=True)
    assert told(bench) == []


@pytest.mark.parametrize("lost", [{30, 34}, {*range(29, 36)}])
def test_lost_exports_are_no_sampling(lost: set[int]) -> None:
    assert told(run(set(STEPS) - lost)) == []


def test_spans_that_say_that_they_are_sampled_are_told_whatever_steps_they_have() -> None:
    bench = run(STEPS, sampled={TRAINER: STEPS, GENERATOR: STEPS})
    (words,) = told(bench)
    assert words.startswith("Spans of generator, trainer say")
    assert "tracestate" in words
    assert set(bench.partial().values()) == {2.0}


def test_one_span_that_is_sampled_tells_of_its_own_worker_for_a_minute_only() -> None:
    bench = run(STEPS, sampled={GENERATOR: [5]})
    (words,) = told(bench)
    assert words.startswith("Spans of generator say")
    partial = bench.partial()
    assert set(partial.values()) == {None, 1.0}
    assert partial[5] == 1.0
    assert partial[STEPS[-1]] is None


def test_sampled_spans_are_known_over_a_restart_until_their_steps_are_over() -> None:
    found = SpanWindow()
    found.add(step(1), AlignSettings(), 0)
    found.missing.mark({TRAINER: T0 + 2 * S})
    restored = decode(encode(found), SpanWindow)
    assert restored.missing.marked_ns.keys() == {("trainer", "trainer-0")}
    restored.missing.unmark_through(T0 + 3 * S)
    assert not decode(encode(restored), SpanWindow).sampled
