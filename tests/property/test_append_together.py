"""Requests that are stored in one transaction are kept or refused as each by itself."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.errors import JournalFull
from otel_rl.records import Batch, ExperimentKey, Signal
from tests.slow import examples

NAMES = ("a", "b", "c")
SHARE = 0.01
MAX_BYTES = 10 << 20  # of which an experiment has a hundredth

requests = st.lists(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([1, 40_000, 90_000, 120_000]))),
    min_size=1,
    max_size=6,
)


def batches(drawn: Sequence[Sequence[tuple[str, int]]]) -> list[list[Batch]]:
    numbers = iter(range(1000))
    return [
        [
            Batch(ExperimentKey(name), Signal.METRICS, b"%3d" % next(numbers) + b"x" * size, 1)
            for name, size in request
        ]
        for request in drawn
    ]


def kept(spool: Spool) -> dict[str, list[bytes]]:
    return {
        name: [
            one.batch.payload[:3] for one in spool.read(ExperimentKey(name), max_bytes=MAX_BYTES)
        ]
        for name in NAMES
    }


@given(requests)
@settings(max_examples=examples(60), deadline=None)
def test_requests_stored_together_are_kept_as_one_by_one(
    drawn: list[list[tuple[str, int]]],
) -> None:
    found = batches(drawn)
    with tempfile.TemporaryDirectory() as directory:
        one_by_one = SqliteJournal(Path(directory) / "one", max_bytes=MAX_BYTES)
        together = SqliteJournal(Path(directory) / "together", max_bytes=MAX_BYTES)
        slow, fast = Spool(one_by_one, max_share=SHARE), Spool(together, max_share=SHARE)
        outcomes = []
        for request in found:
            try:
                slow.append(request)
            except JournalFull:
                outcomes.append(False)
            else:
                outcomes.append(True)
        storing = fast.append_together(found)
        assert storing is not None
        assert [full is None for full in storing.result(60)] == outcomes
        assert kept(fast) == kept(slow)
        assert fast.in_use() == slow.in_use()
        one_by_one.close()
        together.close()
