"""What exports tell about a run's workers: their progress, their clocks, and that they live."""

from collections.abc import Iterable
from typing import Final

from otel_rl.bridge.rows.intake import PointIntake
from otel_rl.bridge.rows.liveness import Liveness
from otel_rl.bridge.rows.messages import of_continued
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.series.worker_clock import tolerance_ns
from otel_rl.records import Departure, ExperimentStatus, Export

_NS_PER_S: Final = 1_000_000_000


class WorkerReports:
    """Takes the exports of the workers of one run.

    Attributes:
        has_exports: Whether an export arrived since everything was closed.
        is_one_launch: Whether all workers belong to the one launch that the bridge is for.
    """

    def __init__(self, intake: PointIntake, liveness: Liveness, *, has_exports: bool) -> None:
        self._intake = intake
        self._liveness = liveness
        self.has_exports = has_exports
        self.is_one_launch = False
        # Whether the run was over when it was loaded, and nobody has come since.
        self._was_over = liveness.is_over

    def add(
        self,
        exports: Iterable[Export],
        *,
        is_new: bool,
        arrived_ns: int,
        received_ns: int,
        newest_ns: int,
    ) -> None:
        """Add exports whose samples were added before.

        Args:
            is_new: Whether the batch holds a sample that is not a repeat, or no sample at all.
            arrived_ns: Arrival of the batch, by the bridge's clock.
            received_ns: Arrival on the clock without the bridge's downtime.
            newest_ns: Event time of the latest row.
        """
        intake = self._intake
        most_ns = tolerance_ns(intake.settings.wait_s)
        for export in exports:
            worker = intake.series.workers.lease(export.worker, intake.settings)
            if worker is None:
                continue
            self.has_exports = True
            worker.sends_exit_report = worker.sends_exit_report or export.sends_exit_report
            worker.has_worked = worker.has_worked or export.has_work
            goes_on = self._liveness.exported(export.worker, worker, export.time_ns, received_ns)
            is_held = export.worker.index is not None and worker.standing is WorkerStanding.ALIVE
            intake.goodput.exported(worker, export.time_ns, is_held=is_held)
            # A repeat shows neither the progress of its worker nor its clock.
            event_ns = export.time_ns if is_new or export.time_ns > worker.event_ns else 0
            # A clock that has stood still is no measure of another.
            intake.history.exported(worker, event_ns, arrived_ns)
            intake.history.placed(worker, export.host, export.pid)
            if event_ns:
                worker.clock.exported(event_ns, arrived_ns, most_ns)
            worker.exported(received_ns=received_ns, event_ns=event_ns)
            if goes_on:
                self._note_going_on(max(newest_ns, export.time_ns))

    def _note_going_on(self, time_ns: int) -> None:
        """Note that a run goes on after it had ended.

        A launch may have one process after another, so a bridge for one launch notes only runs that
        were over when they were loaded. A bridge for many launches notes runs that had ended well:
        a launcher restarts failed processes, and a restart of the bridge makes no difference.
        """
        went_well = self._liveness.status() is ExperimentStatus.COMPLETE
        if self._was_over if self.is_one_launch else went_well:
            self._intake.warnings.append(of_continued(time_ns, went_well=went_well))
        self._was_over = False

    def look_at_clocks(self, exports: Iterable[Export], arrived_ns: int) -> None:
        """Compare the clocks of senders that are ahead, before their samples are added.

        A single sample from the future would close all windows until then.
        """
        workers, settings = self._intake.series.workers, self._intake.settings
        most_ns = tolerance_ns(settings.wait_s)
        for export in exports:
            if export.time_ns - arrived_ns > most_ns:
                worker = workers.lease(export.worker, settings)
                if worker is None:
                    continue
                before_ns = worker.clock.ahead_ns
                worker.clock.exported(export.time_ns, arrived_ns, most_ns)
                # All of them are ahead if the bridge's own clock is behind.
                if worker.clock.ahead_ns != before_ns:
                    workers.compare_clocks(settings)

    def add_departures(self, departures: Iterable[Departure], received_ns: int) -> None:
        """Add ends of workers that arrived at ``received_ns``, on the clock without downtime."""
        intake = self._intake
        for departure in departures:
            worker = intake.series.workers.lease(departure.worker, intake.settings)
            if worker is not None:
                self._liveness.ended(departure, worker, received_ns)
                if worker.standing is WorkerStanding.LEFT:
                    intake.goodput.left(worker)

    def look(self, now_ns: int) -> None:
        """Check the liveness of workers, and forget those that ended long ago."""
        table, settings = self._intake.series, self._intake.settings
        table.workers.compare_clocks(settings)
        for worker in table.workers.states.values():
            worker.clock_is(now_ns)
        lease_ns = int(settings.worker_timeout_s * _NS_PER_S)
        self._liveness.look(table.workers.states, lease_ns=lease_ns, now_ns=now_ns)
        table.forget(settings, now_ns)
