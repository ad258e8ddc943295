"""The GPU of a worker, as a device exporter beside it reports it."""

from bench.second_exam.systems.world import Point, Worker
from bench.second_exam.trouble import What

__all__ = ["report_device"]


def report_device(worker: Worker, step: int) -> None:
    """Report temperature and throttling, where the program measures its devices."""
    world = worker.world
    heat = world.troubles.amount(What.HEAT, worker.role, worker.index, step, world.program.steps)
    if world.troubles.of(What.HEAT) or world.program.telemetry.is_ours:
        reason = {"rl.gpu.throttle.reason": "thermal"}
        worker.record(Point("gauge", "rl.gpu.throttled", float(heat > 0), None, reason))
        degrees = 66 + 22 * (heat > 0) + world.chance.gauss(0, 1)
        worker.record(Point("gauge", "hw.temperature", degrees, None, {"hw.type": "gpu"}))
