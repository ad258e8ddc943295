"""Divides each device's samples between the phases that held it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.semconv.names import (
    HW_ENERGY,
    HW_GPU_MEMORY_USAGE,
    HW_GPU_UTILIZATION,
    RL_GPU_OWNER,
    RL_GPU_OWNER_BUSY_TIME,
    RL_GPU_OWNER_ENERGY,
    RL_GPU_OWNER_MEMORY_USAGE,
    RL_GPU_OWNER_TIME,
)
from otel_rl.worker.gpu.readings import Reading

__all__ = ["PhaseShares"]


Answers = Sequence[tuple[str, Sequence[Reading]]]


@dataclass(slots=True)
class _Total:
    """Totals of one phase on one device."""

    held_s: float = 0.0
    busy_s: float = 0.0
    energy_j: float = 0.0


@dataclass(slots=True)
class PhaseShares:
    """Shares of all phases and devices of one process.

    A sample's utilization applies to the interval before it; each change of the phase triggers a
    sample, so an interval belongs to one phase. Energy is the device's own count.
    """

    _sampled_s: float = 0.0
    _held_s: Mapping[str, float] = field(default_factory=dict)
    _energy_j: dict[str, float] = field(default_factory=dict)
    _totals: dict[tuple[str, str], _Total] = field(default_factory=dict)

    def divide(
        self, now_s: float, held_s: Mapping[str, float], answers: Answers
    ) -> Iterator[tuple[str, list[Reading]]]:
        """Add a sample of every device; yield readings by phase, with each device's id.

        Args:
            now_s: By a monotonic clock.
            held_s: Time that each phase has held the devices.
            answers: Readings of each device.
        """
        turns = {phase: s - self._held_s.get(phase, 0.0) for phase, s in held_s.items()}
        passed_s, self._sampled_s = now_s - (self._sampled_s or now_s), now_s
        self._held_s = dict(held_s)
        longest = max(turns, key=turns.__getitem__, default="")
        for uuid, readings in answers:
            found = {reading.metric: reading.value for reading in readings}
            used_j = self._used_j(uuid, found.get(HW_ENERGY))
            power_w = used_j / passed_s if passed_s > 0 else 0.0
            for phase, turn_s in turns.items():
                total = self._totals.setdefault((uuid, phase), _Total())
                total.held_s += turn_s
                total.busy_s += turn_s * found.get(HW_GPU_UTILIZATION, 0.0)
                total.energy_j += turn_s * power_w
            holder = longest if turns.get(longest) else ""
            yield uuid, [*self._readings(uuid, holder, found)]

    def _used_j(self, uuid: str, energy_j: float | None) -> float:
        if energy_j is None:
            return 0.0
        before_j = self._energy_j.get(uuid, energy_j)
        self._energy_j[uuid] = energy_j
        return max(0.0, energy_j - before_j)

    def _readings(self, uuid: str, holder: str, found: Mapping[str, float]) -> Iterator[Reading]:
        for (device, phase), total in self._totals.items():
            if device == uuid:
                of_phase = ((RL_GPU_OWNER, phase),)
                yield Reading(RL_GPU_OWNER_TIME, total.held_s, of_phase, since=0)
                yield Reading(RL_GPU_OWNER_BUSY_TIME, total.busy_s, of_phase, since=0)
                yield Reading(RL_GPU_OWNER_ENERGY, total.energy_j, of_phase, since=0)
        if holder and HW_GPU_MEMORY_USAGE in found:
            used = found[HW_GPU_MEMORY_USAGE]
            yield Reading(RL_GPU_OWNER_MEMORY_USAGE, used, ((RL_GPU_OWNER, holder),))
