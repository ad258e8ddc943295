"""Steps that have a row: which of them late samples may join, also after a restart."""

import pytest

from otel_rl.bridge.journal.state import StateRefused
from otel_rl.bridge.rows.steps.step import OpenStep, StepRow
from otel_rl.bridge.rows.steps.written_steps import StepLogs, WrittenSteps
from tests.support.slow import slow_after

GROUPS = 1_000
MOST_BYTES = 16 << 20


def step(value: float = 1.0, *, values: int = 1) -> OpenStep:
    made = OpenStep(row=StepRow(1, None))
    for number in range(values):
        made.cells[number] = [value]
    return made


class Journal:
    """Keeps the log of one role as a journal does."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.logs, self.steps = StepLogs(), WrittenSteps()

    def write(self, **made: OpenStep) -> None:
        for number, written in made.items():
            self.steps.put(
                int(number.removeprefix("n")), written, most=10_000, most_bytes=MOST_BYTES
            )
        self.commit()

    def commit(self) -> None:
        if (part := self.logs.take({"trainer": self.steps})) is not None:
            self.parts[part.newest_ns] = part.body
        self.parts = {n: body for n, body in self.parts.items() if n > self.logs.forgotten}

    def restart(self) -> None:
        self.logs, self.steps = StepLogs(), WrittenSteps(self.steps.left_through)
        for body in self.parts.values():
            self.logs.restore(body, {"trainer": self.steps}, GROUPS)


def values_of(found: OpenStep | None) -> list[float]:
    assert found is not None
    (cell,) = found.cells.values()
    assert isinstance(cell, list)
    return cell


@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_is_as_it_was_written_last(restarts: bool) -> None:
    kept = Journal()
    kept.write(n1=step(1.0), n2=step(2.0))
    kept.steps.take(1)
    kept.write(n1=step(7.0))
    if restarts:
        kept.restart()
    assert values_of(kept.steps.take(1)) == [7.0]
    assert values_of(kept.steps.take(2)) == [2.0]
    assert kept.steps.take(1) is None


def test_a_step_of_a_pass_that_is_over_does_not_come_back_with_a_restart() -> None:
    kept = Journal()
    kept.write(n1=step(), n2=step(), n3=step())
    kept.steps.drop_from(2)
    kept.commit()
    kept.restart()
    assert [kept.steps.take(number) is not None for number in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_that_is_written_again_just_before_its_pass_is_over_does_not_come_back(
    restarts: bool,
) -> None:
    kept = Journal()
    kept.write(n1=step(), n2=step())
    again = kept.steps.take(2)
    assert again is not None
    kept.steps.put(2, again, most=10_000, most_bytes=MOST_BYTES)
    kept.steps.drop_from(2)
    kept.commit()
    if restarts:
        kept.restart()
    assert kept.steps.take(2) is None
    assert kept.steps.take(1) is not None


@pytest.mark.parametrize("restarts", [False, True])
def test_a_step_that_is_left_after_a_late_sample_is_left_for_good(restarts: bool) -> None:
    kept = Journal()
    kept.write(**{f"n{number}": step() for number in range(1_000)})
    again = kept.steps.take(0)
    assert again is not None
    kept.steps.put(1_000, step(), most=10_000, most_bytes=MOST_BYTES)
    kept.steps.put(0, again, most=10_000, most_bytes=MOST_BYTES)
    kept.commit()
    if restarts:
        kept.restart()
    assert kept.steps.has_left(0)
    assert kept.steps.take(0) is None


@pytest.mark.parametrize("restarts", [False, True])
def test_what_becomes_of_a_row_after_it_was_put_is_kept(restarts: bool) -> None:
    kept, made = Journal(), step()
    row = made.row
    assert row is not None
    kept.steps.put(1, made, most=10_000, most_bytes=MOST_BYTES)
    row.is_marked = True
    kept.commit()
    if restarts:
        kept.restart()
    found = kept.steps.take(1)
    assert found is not None
    assert found.row == StepRow(1, None, is_marked=True)


def test_beyond_the_bound_the_lowest_steps_are_left() -> None:
    kept = Journal()
    for number in range(1_005):
        kept.steps.put(number, step(), most=10_000, most_bytes=MOST_BYTES)
    assert kept.steps.take(4) is None
    assert kept.steps.has_left(4)
    assert not kept.steps.has_left(5)
    assert kept.steps.take(5) is not None


@pytest.mark.parametrize("commits", slow_after(1, [True, False]))
def test_wide_steps_are_bounded_by_their_bytes(commits: bool) -> None:
    kept = Journal()
    for number in range(40):
        kept.steps.put(number, step(0.123, values=60_000), most=10_000, most_bytes=MOST_BYTES)
        if commits:
            kept.commit()
    assert kept.steps.has_left(5)
    assert kept.steps.take(39) is not None
    assert sum(map(len, kept.parts.values())) < 20 << 20


def test_a_part_of_the_log_is_forgotten_when_none_of_its_steps_is_as_it_says() -> None:
    kept = Journal()
    for number in range(3_000):
        kept.write(**{f"n{number}": step()})
    assert 1_000 <= len(kept.parts) <= 1_001


def test_a_step_that_is_written_again_and_again_takes_little_of_the_journal() -> None:
    kept = Journal()
    kept.write(n1=step(), n2=step())
    for _ in range(3_000):
        kept.steps.take(2)
        kept.write(n2=step(0.123, values=1_000))
    assert sum(map(len, kept.parts.values())) < 2 << 20
    kept.restart()
    assert values_of(kept.steps.take(1)) == [1.0]


def test_a_log_of_groups_that_are_not_there_is_refused() -> None:
    kept = Journal()
    kept.write(n1=step(values=GROUPS + 1))
    with pytest.raises(StateRefused):
        kept.restart()
