"""Takes the reports of workers about themselves: exports, which renew a lease, and ends."""

from collections.abc import Iterable

from otel_rl.bridge.rows.open_run.run_state import RunState
from otel_rl.bridge.rows.reports.data_warnings import of_continued
from otel_rl.bridge.rows.series.streams import WorkerStanding
from otel_rl.bridge.rows.series.worker_clock import tolerance_ns
from otel_rl.records import Departure, ExperimentStatus, Export

__all__ = ["add_departures", "add_exports", "look_at_clocks"]


def add_exports(
    state: RunState, exports: Iterable[Export], *, is_new: bool, arrived_ns: int, received_ns: int
) -> None:
    """Add exports whose samples are already added.

    Args:
        state: Of their run.
        exports: Of one batch.
        is_new: Whether the batch holds a sample that is no repeat, or no sample.
        arrived_ns: Arrival of the batch, by the bridge's clock.
        received_ns: That without the bridge's downtime.
    """
    intake = state.intake
    most_ns = tolerance_ns(intake.settings.wait_s)
    arrived = state.liveness.arrived
    for export in exports:
        worker = intake.series.workers.lease(export.worker, intake.settings)
        if worker is None:
            continue
        state.is_watching = True
        worker.sends_exit_report = worker.sends_exit_report or export.sends_exit_report
        worker.has_worked = worker.has_worked or export.has_work
        state.liveness.exported(export.worker, worker, export.time_ns, received_ns)
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
        if state.is_over and state.liveness.arrived > arrived:
            _go_on(state, max(state.newest_ns, export.time_ns))


def _go_on(state: RunState, time_ns: int) -> None:
    """Note that a run goes on after its end.

    A launch may have one process after another, and starts again what has failed.
    """
    went_well = state.liveness.status() is ExperimentStatus.COMPLETE
    if state.was_over or (went_well and not state.is_one_launch):
        state.intake.warnings.append(of_continued(time_ns, went_well=went_well))
    state.is_over = state.was_over = False


def look_at_clocks(state: RunState, exports: Iterable[Export], arrived_ns: int) -> None:
    """Compare the clocks of senders that are ahead, before their samples are added.

    One sample of the future would close all windows until then.
    """
    workers, settings = state.intake.series.workers, state.intake.settings
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


def add_departures(state: RunState, departures: Iterable[Departure], received_ns: int) -> None:
    """Add ends of workers that arrived at ``received_ns``, without the bridge's downtime."""
    intake = state.intake
    for departure in departures:
        worker = intake.series.workers.lease(departure.worker, intake.settings)
        if worker is not None:
            state.liveness.ended(departure, worker, received_ns)
            if worker.standing is WorkerStanding.LEFT:
                intake.goodput.left(worker)
