"""Adds the points of an export, nearly all of which are single measurements with a step.

These take a shorter way to the same result as ``PointIntake.add``: a worker sends each of its
series once a second, so this is most of the work of a run with many workers. The points of a known
shape take a still shorter one, by column.
"""

from collections.abc import Sequence
from typing import cast

from otel_rl.bridge.otlp.known_points import JoinedPoints, KnownPoints, KnownShares
from otel_rl.bridge.rows.goodput.goodput import TIMED
from otel_rl.bridge.rows.intake.point_intake import PointIntake
from otel_rl.bridge.rows.series.streams import WorkerState
from otel_rl.bridge.rows.steps.open_step import OpenStep
from otel_rl.records import Measurements, Point
from otel_rl.semconv import names

__all__ = ["add_points"]


def add_points(intake: PointIntake, points: Sequence[Point], received_ns: int) -> None:
    """Add points in their order, which arrived at ``received_ns`` by the bridge's clock."""
    for part in points.parts if isinstance(points, JoinedPoints) else (points,):
        is_added = False
        if isinstance(part, KnownPoints):
            is_added = _add_columns(intake, part, received_ns)
        elif isinstance(part, KnownShares):
            is_added = _add_shares(intake, part, received_ns)
        if not is_added:
            _add_points(intake, part, received_ns)


def _add_columns(intake: PointIntake, points: KnownPoints, received_ns: int) -> bool:
    """Add the points of one worker by column, as ``_add_points`` does.

    Returns:
        Whether they were added: all are of one step and go on where the last export of their series
        ended. Otherwise nothing was changed.
    """
    starts_ns, ends_ns, times_ns, values, steps = points.columns
    plan = intake.plans.find(points.series, intake.series)
    if plan is None:
        return False
    if not plan.takes(starts_ns, ends_ns, times_ns, steps):
        return False
    step, worker = cast("int", steps[0]), plan.worker
    opened = intake.steps.open_for(worker, step, received_ns)
    if opened is None:
        return False
    intake.sample_counts.taken += len(values)
    for bounds, end_ns in zip(plan.bounds, ends_ns, strict=True):
        bounds[-1] = end_ns
    if intake.archived is not None:
        intake.archived.measured_each(plan.numbers, points.series, times_ns, values, step)
    intake.history.measured.add_export(plan.keys, worker, step, values)
    for place in plan.timed:
        intake.goodput.measured(plan.streams[place], (values[place],), (times_ns[place],))
    if plan.groups is None:
        intake.steps.add_export(opened, plan.streams, step, values, times_ns, intake.settings)
    else:
        intake.steps.add_row(opened, plan.streams, plan.groups, step, values, times_ns)
    _observe(intake, worker, step, times_ns, received_ns)
    return True


def _add_shares(intake: PointIntake, shares: KnownShares, received_ns: int) -> bool:
    """Add the shares of one worker by column. Returns as ``_add_columns`` does."""
    befores_ns, starts_ns, times_ns, values, steps = shares.columns
    plan = intake.plans.find(shares.series, intake.series)
    if plan is None:
        return False
    if not plan.takes(befores_ns, times_ns, times_ns, steps):
        return False
    step, worker = steps[0], plan.worker
    opened = intake.steps.open_for(worker, step, received_ns)
    if opened is None:
        return False
    intake.sample_counts.taken += len(values)
    for bounds, stream, time_ns in zip(plan.bounds, plan.streams, times_ns, strict=True):
        bounds[-1] = time_ns
        stream.has_shares()
    if intake.archived is not None:
        archived = intake.archived.shared_each
        archived(plan.numbers, shares.series, starts_ns, times_ns, values, step)
    intake.steps.add_shares(opened, plan.streams, step, values, starts_ns, times_ns)
    _observe(intake, worker, step, times_ns, received_ns)
    return True


def _observe(
    intake: PointIntake, worker: WorkerState, step: int, times_ns: Sequence[int], received_ns: int
) -> None:
    """Put the times of a step on the axis, if the worker leads it."""
    if intake.axis.leads(worker, received_ns, is_step=True):
        intake.axis.steps.observe((time_ns, step) for time_ns in times_ns)


def _add_points(intake: PointIntake, points: Sequence[Point], received_ns: int) -> None:
    counts, settings, archived = intake.sample_counts, intake.settings, intake.archived
    find, measured, steps = intake.series.stream, intake.history.measured.add_one, intake.steps
    # The worker of the last point, and whether it leads the axis: asked once in an export.
    worker: WorkerState | None = None
    leads: bool | None = None
    # The open step of the last point, asked for once, too.
    opened: OpenStep | None = None
    opened_step = 0
    for point in points:
        stream = find(point.series, settings) if _is_single(point) else None
        if stream is None:
            intake.add(point, received_ns)
            worker = None  # it may be another one that leads now
            continue
        assert isinstance(point, Measurements)
        assert point.covers is not None
        value, time_ns = point.values[0], point.times_ns[0]
        start_ns, end_ns = point.covers
        counts.taken += 1
        if end_ns <= stream.unknown_through_ns:
            counts.drop_as_too_old(1)
            continue
        if not stream.seen.take_interval(start_ns, end_ns):
            counts.drop_as_duplicate(1)
            continue
        if archived is not None:
            archived.measured(stream.number, point)
        if stream.worker is not worker:
            worker, leads, opened = stream.worker, None, None
        step = cast("int", point.steps[0])
        measured(stream, value, step)
        if stream.group.name in TIMED:
            intake.goodput.measured(stream, (value,), (time_ns,))
        is_next = stream.last_step is None or step >= stream.last_step
        if is_next and (opened is None or step != opened_step):
            opened, opened_step = steps.open_for(worker, step, received_ns), step
        if is_next and opened is not None:
            steps.add_to(opened, stream, step, value, time_ns, settings)
        else:
            opened = None
            counts.late += steps.add(stream, (step,), (value,), (time_ns,), received_ns, settings)
        if leads is None:
            leads = intake.axis.leads(worker, received_ns, is_step=True)
        if leads:
            intake.axis.steps.observe(((time_ns, step),))


def _is_single(point: Point) -> bool:
    """Return whether a point is one measurement with a step, after another one of its series."""
    return (
        type(point) is Measurements
        and len(point.values) == 1
        and point.steps[0] is not None
        and point.covers is not None
        and point.covers[0] != 0
        and point.series.name != names.RL_POLICY_VERSION
    )
