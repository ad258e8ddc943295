"""The GPU of a worker, as a device exporter beside it reports it."""

import math
import random

from exams.second.sdk.encode import host_of
from exams.second.systems.world import Point, Worker
from exams.second.trouble import What


def report_device(worker: Worker, step: int) -> None:
    """Report temperature and throttling, where the program measures its devices."""
    world = worker.world
    heat = world.troubles.amount(What.HEAT, worker.role, worker.index, step, world.program.steps)
    if world.troubles.of(What.HEAT) or world.program.telemetry.is_ours:
        reason = {"rl.gpu.throttle.reason": "thermal"}
        worker.record(Point("gauge", "rl.gpu.throttled", float(heat > 0), None, reason))
        degrees = 66 + 22 * (heat > 0) + world.chance.gauss(0, 1)
        worker.record(Point("gauge", "hw.temperature", degrees, None, {"hw.type": "gpu"}))
    if world.troubles.of(What.STEAL) or world.program.telemetry.is_ours:
        _report_host(worker, step)
    if world.troubles.of(What.LINK):
        _report_links(worker, step)
    if world.troubles.of(What.LEAK) or world.troubles.of(What.FILLS):
        _report_memory(worker, step)


def _report_host(worker: Worker, step: int) -> None:
    chance = random.Random(f"host {worker.world.program.seed} {step} {worker.index}")
    stolen = worker.world.stolen(worker.role, worker.index, step)
    steal = 0.004 + 0.01 * chance.random() + (0.15 + 0.1 * chance.random()) * (stolen is not None)
    where = {"host.name": host_of(worker.role, worker.index)}
    for value, mode in ((steal, {"cpu.mode": "steal"}), (0.4 + 0.3 * chance.random(), {})):
        worker.record(Point("gauge", "system.cpu.utilization", value, None, {**where, **mode}))


def _report_memory(worker: Worker, step: int) -> None:
    """Report the memory of the process, in bytes, of which it may have 64 GiB."""
    world, steps = worker.world, worker.world.program.steps
    chance = random.Random(f"memory {world.program.seed} {step} {worker.index}")
    used = 20 + chance.gauss(0, 0.2)
    for one in world.troubles.of(What.LEAK):  # full soon after the run
        if one.meets(worker.role, worker.index):
            used += 38 * max(0, step - one.step) / (steps - one.step)
    for one in world.troubles.of(What.FILLS):
        used += one.size * (1 - math.exp(-6 * step / steps))
    for name, value in (("usage", used), ("limit", 64.0)):
        worker.record(Point("gauge", f"process.memory.{name}", value * 2**30))


def _report_links(worker: Worker, step: int) -> None:
    """Report bandwidths as NCCL Inspector does, of two sizes of messages."""
    world = worker.world
    chance = random.Random(f"links {world.program.seed} {step} {worker.index}")
    slower = world.troubles.amount(What.LINK, worker.role, worker.index, step, world.program.steps)
    for size, usual in (("134-135MB", 44.0), ("3-4KB", 0.3)):
        bandwidth = usual / (slower or 1) * math.exp(chance.gauss(0, 0.08))
        labels = {
            "collective": "AllGather", "message_size": size, "algo_proto": "RING_SIMPLE",
            "gpu": "GPU0", "node": host_of(worker.role, worker.index), "comm_name": "unknown",
            "n_nodes": "4", "nranks": "32", "version": "v5.1", "slurm_job_id": "unknown",
        }  # fmt: skip
        worker.record(Point("gauge", "nccl_bus_bandwidth_gbs", bandwidth, None, labels))
