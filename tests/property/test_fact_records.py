"""A diagnosis reads what the bridge wrote, numbers that are none included."""

import json
import zlib

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.diagnose.history.records import Facts, RowFacts, WorkerFacts

numbers = st.floats() | st.integers(-(1 << 63), (1 << 63) - 1).map(float)
texts = st.text(st.characters(exclude_categories=["Cs"]))
steps = st.integers(-(1 << 63), (1 << 63) - 1)
workers = st.builds(
    WorkerFacts,
    worker=texts,
    step=st.none() | steps,
    measurements=st.integers(0, 1 << 40),
    total=numbers,
    oddities=st.integers(0, 9),
)


@given(
    st.dictionaries(texts, st.lists(workers, max_size=4), max_size=4),
    st.lists(st.builds(RowFacts, steps, steps, st.dictionaries(texts, numbers), st.just(1))),
)
def test_a_record_is_read_as_it_was_written(
    of_keys: dict[str, list[WorkerFacts]], rows: list[RowFacts]
) -> None:
    facts = Facts(
        *(1, 2, rows, [], of_keys, [], [("trainer/0", 0.5)]),
        *([], [], "running", 1, ["trainer/1"], [("trainer/1", "a", 7)]),
    )
    assert repr(Facts.decode(facts.encode())) == repr(facts)  # NaN does not equal itself


def test_a_record_of_format_10_withdraws_no_loss_and_one_of_format_13_tells_no_places() -> None:
    facts = Facts(1, 2, lost=["trainer/0"], returned=["trainer/1"], places=[("trainer/1", "a", 7)])
    fields = json.loads(zlib.decompress(facts.encode()))
    of_10, of_13 = (Facts.decode(zlib.compress(json.dumps(fields[:n]).encode())) for n in (-2, -1))
    assert (of_10.lost, of_10.returned, of_10.places) == (["trainer/0"], (), [])
    assert (of_13.returned, of_13.places) == (["trainer/1"], [])
    assert Facts.decode(facts.encode()).places == [("trainer/1", "a", 7)]
