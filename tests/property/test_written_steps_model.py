"""Whatever happens between two commits, written steps are after a restart as they were before it.

A plain dict of the values of the steps is the model.
"""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bridge.rows.steps.test_written_steps import MOST_BYTES, Journal, step, values_of

STEPS = range(6)

_numbers = st.sampled_from(STEPS)
_changes = st.lists(
    st.tuples(st.sampled_from(["write", "join", "take"]), _numbers)
    | st.tuples(st.just("go back"), _numbers),
    max_size=8,
)


@given(commits=st.lists(_changes, max_size=4), most=st.sampled_from([2, 100]))
def test_written_steps_survive_a_restart_after_any_changes(
    commits: Sequence[Sequence[tuple[str, int]]], most: int
) -> None:
    kept, model, values = Journal(), dict[int, list[float]](), 0.0
    for changes in commits:
        for change, number in changes:
            values += 1
            if change == "go back":
                kept.steps.drop_from(number)
                model = {n: made for n, made in model.items() if n < number}
                continue
            found = kept.steps.take(number)
            before = model.pop(number, None)
            assert (found and values_of(found)) == before
            if change == "write" or (change == "join" and before is not None):
                model[number] = [*(before or []), values]
                written = found or step()
                written.cells[0] = [*model[number]]
                kept.steps.put(number, written, most=most, most_bytes=MOST_BYTES)
                while len(model) > most:
                    del model[min(model)]
        kept.commit()
        kept.restart()
        assert len(kept.steps) == len(model)
        for number in STEPS:
            found = kept.steps.take(number)
            assert (found and values_of(found)) == model.get(number)
            if found is not None:
                kept.steps.put(number, found, most=most, most_bytes=MOST_BYTES)
