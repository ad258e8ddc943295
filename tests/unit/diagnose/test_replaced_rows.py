"""A step that is written again counts once, with its newest values, for whoever reads rows."""

from otel_rl.diagnose.history.records import Facts, RowFacts
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.view.run_data import RunData

S = 1_000_000_000
ROWS = [
    RowFacts(1, S, {"trainer/loss": 4.0}),
    RowFacts(2, 2 * S, {"trainer/loss": 1.0}),
    RowFacts(1, S + 1, {"trainer/loss": 6.0, "trainer/judge": 7.0}, replaces=True),
]
FACTS = [Facts(3 * S, 2, ROWS[:2]), Facts(4 * S, 2, ROWS[2:])]


def test_a_diagnosis_takes_the_newest_row_of_a_step() -> None:
    history = RunHistory([Facts.decode(facts.encode()) for facts in FACTS])
    loss, judge = history.rows["trainer/loss"], history.rows["trainer/judge"]
    assert ([*loss.steps], [*loss.values]) == ([1, 2], [6.0, 1.0])
    assert ([*judge.steps], [*judge.values]) == ([1], [7.0])


def test_the_page_draws_the_newest_row_of_a_step() -> None:
    data = RunData()
    for number, facts in enumerate(FACTS):
        data.add(number, facts)
    loss = data.series["trainer/loss"]
    assert ([*loss.steps], [*loss.values]) == ([1, 2], [6.0, 1.0])
    assert [*data.series["trainer/judge"].values] == [7.0]
