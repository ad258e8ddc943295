"""What the tracker has is noted, and removed no earlier than the settings say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from otel_rl.bridge.cleanup import Cleanup
from otel_rl.bridge.config import load_settings
from otel_rl.bridge.counters import Counter, Counters, Removal
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings, RunState, RunStatus
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.retention import Retention
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.rows.scheduler import Around, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import ExperimentKey, Row
from tests.support.stores import Store, runs_of

S = 1_000_000_000
DAY_NS = 86_400 * S
T0 = 1_700_000_000 * S
KEY, TRACKER = ExperimentKey("a"), "jsonl"


class Rig:
    """A journal with one run of three rows, none of which waits."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.now_ns = T0
        self.counters = Counters()
        journal = store.open()
        self.journal = journal
        self.run_store = RunStore(journal, clock_ns=lambda: self.now_ns)
        self.deliveries = DeliveryStore(journal, TRACKER, clock_ns=lambda: self.now_ns)
        rows = [Row(n, n, T0 + n, {"trainer/loss": 1.0}) for n in range(3)]
        self.run_store.commit([Commit(KEY, rows, 3, b"state")])
        tracker = {"name": TRACKER, "keep_confirmed_s": 60.0}
        settings = load_settings(None, {"data": directory, "tracker": tracker})
        delivery = DeliveryManager(
            self.run_store,
            [(DeliverySettings(TRACKER, directory, {}), self.deliveries)],
            self.counters.add,
        )
        processor = Scheduler(
            Spool(journal),
            self.run_store,
            AlignSettings.of(settings.rows),
            self.counters,
            around=Around(notify=delivery.notify),
        )
        self.cleanup = Cleanup(
            settings,
            cast(
                "Any",
                SimpleNamespace(run_store=self.run_store, deliveries=self.deliveries, leases=None),
            ),
            Retention(
                journal,
                trackers=[TRACKER],
                keep_ns=20 * DAY_NS,
                share_of=lambda _: ("", 1 << 30),
                late_ns=S,
                busy=set,
            ),
            delivery=delivery,
            rows=processor,
            counters=self.counters,
            clock_ns=lambda: self.now_ns,
        )

    def status(self, state: RunState) -> RunStatus:
        return RunStatus(KEY, TRACKER, "", state, 3, 3, 0, "")

    def kept(self) -> int:
        return len(self.run_store.rows(KEY, start=0, limit=10))


def test_only_a_run_that_the_tracker_has_finished_is_noted(store: Store, tmp_path: Path) -> None:
    rig = Rig(store, tmp_path)
    rig.cleanup.note_finished([rig.status(RunState.LIVE)])
    assert rig.deliveries.unfinished() == [KEY]
    rig.cleanup.note_finished([rig.status(RunState.FINISHED)])
    assert rig.deliveries.unfinished() == []


def test_rows_of_a_finished_run_stay_as_long_as_the_settings_say(
    store: Store, tmp_path: Path
) -> None:
    rig = Rig(store, tmp_path)
    rig.deliveries.confirmed(KEY, 3)
    rig.cleanup.note_finished([rig.status(RunState.FINISHED)])
    rig.now_ns = T0 + 59 * S
    rig.cleanup.prune()
    assert rig.kept() == 3
    rig.now_ns = T0 + 61 * S
    rig.cleanup.prune()
    assert rig.kept() == 0


def test_a_run_that_ended_long_ago_is_removed_and_counted(store: Store, tmp_path: Path) -> None:
    rig = Rig(store, tmp_path)
    rig.deliveries.confirmed(KEY, 3)
    rig.cleanup.note_finished([rig.status(RunState.FINISHED)])
    for days, removed in ((19, 0), (21, 1)):
        rig.now_ns = T0 + days * DAY_NS
        rig.cleanup.prune()
        rig.cleanup.remove_ended()
        assert rig.counters.value(Counter.RUNS_REMOVED, reason=Removal.TOO_OLD) == removed
    assert runs_of(rig.journal) == []
