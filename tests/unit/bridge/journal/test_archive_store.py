"""What waits for the archive, in each kind of journal."""

from otel_rl.bridge.journal.archive_store import ArchiveStore, StoredPart
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.records import ExperimentKey
from tests.support.stores import Store

KEY = ExperimentKey("a")


def test_a_file_keeps_its_parts_while_others_come_until_it_is_there(store: Store) -> None:
    journal = store.open()
    runs, archive = RunStore(journal), ArchiveStore(journal)
    runs.commit([Commit(KEY, (), 0, b"s", archive=[(1, b"x" * 60), (2, b"y" * 60), (3, b"z")])])
    assert archive.size() > 120
    first = archive.begin_file(KEY, 100)
    runs.commit([Commit(KEY, (), 0, b"s", archive=[(4, b"later")])])
    assert archive.begin_file(KEY, 1 << 20) == first
    assert first is not None
    assert [*archive.parts(KEY, first)] == [StoredPart(1, b"x" * 60), StoredPart(2, b"y" * 60)]
    archive.end_file(KEY, first)
    second = archive.begin_file(KEY, 1 << 20)
    assert second is not None
    assert [*archive.parts(KEY, second)] == [StoredPart(3, b"z"), StoredPart(4, b"later")]
    archive.end_file(KEY, second)
    assert archive.begin_file(KEY, 1 << 20) is None
    assert (archive.size(), archive.waiting()) == (0, [])
