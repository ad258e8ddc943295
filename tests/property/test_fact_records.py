"""A diagnosis reads what the bridge wrote, numbers that are none included."""

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
    facts = Facts(1, 2, rows, [], of_keys, [], [("trainer/0", 0.5)], [], [], "running")
    assert repr(Facts.decode(facts.encode())) == repr(facts)  # NaN does not equal itself
