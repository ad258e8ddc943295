"""A made-up run as nothing but spans, as a trace store has them.

actor    [ rollout ......[ judge: score ]]
learner  [ collector_wait ...............][ train ]     links to the rollouts
"""

import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from otel_rl.records import ExperimentKey
from otel_rl.semconv import names

__all__ = ["Traced"]

_NS = 1_000_000_000
_TOOK_S = {"rollout": 0.3, "score": 0.05, "train": 0.2}
_SIZES = {"actor": 3, "judge": 2, "learner": 2}


@dataclass
class Traced:
    """A run.

    Attributes:
        key: Its experiment and trial.
        begun_ns: When.
        steps: How many.
        seed: Of everything random.
        slower: (role, worker index, step) to the factor by which the worker is slower.
    """

    key: ExperimentKey
    begun_ns: int
    steps: int = 50
    seed: int = 0
    slower: Callable[[str, int, int], float] = lambda role, index, step: 1.0
    _spans: dict[tuple[str, int], list[Span]] = field(default_factory=dict)

    def requests(self) -> Iterator[ExportTraceServiceRequest]:
        """One of each worker."""
        chance, at_ns = random.Random(self.seed), self.begun_ns
        for step in range(self.steps):
            at_ns = self._step(step, at_ns, chance)
        for (role, index), spans in self._spans.items():
            resource = {
                "service.name": f"otel_rl.{role}",
                "service.instance.id": f"{self.key}-{role}-{index}",
                "host.name": "box",
                names.RL_EXPERIMENT_NAME: self.key.experiment,
                names.RL_TRIAL_NAME: self.key.trial,
                names.RL_WORKER_ROLE: role,
                names.RL_WORKER_INDEX: str(index),
            }
            yield ExportTraceServiceRequest(
                resource_spans=[
                    ResourceSpans(
                        resource=Resource(attributes=_attributes(resource)),
                        scope_spans=[ScopeSpans(spans=spans)],
                    )
                ]
            )

    def _step(self, step: int, at_ns: int, chance: random.Random) -> int:
        """Everything of one step, which begins at ``at_ns``. Returns when it ends."""

        def took_ns(role: str, name: str, index: int) -> int:
            noise = math.exp(chance.gauss(0, 0.1))
            return int(_TOOK_S[name] * noise * self.slower(role, index, step) * _NS)

        rollouts = []
        for actor in range(_SIZES["actor"]):
            judge = (step + actor) % _SIZES["judge"]
            sampled_ns = at_ns + took_ns("actor", "rollout", actor)
            end_ns = sampled_ns + took_ns("judge", "score", judge)
            rollout = self._add("actor", actor, "rollout", at_ns, end_ns)
            self._add("judge", judge, "score", sampled_ns, end_ns, parent=rollout)
            rollouts.append(rollout)
        sampled_ns = max(rollout.end_time_unix_nano for rollout in rollouts)
        trained_ns = [
            sampled_ns + took_ns("learner", "train", rank) for rank in range(_SIZES["learner"])
        ]
        for rank, end_ns in enumerate(trained_ns):
            loop = self._add("learner", rank, "rl.loop", at_ns, max(trained_ns), step=step)
            for rollout in rollouts:
                loop.links.add(trace_id=rollout.trace_id, span_id=rollout.span_id)
            self._add("learner", rank, "collector_wait", at_ns, sampled_ns, parent=loop)
            self._add("learner", rank, "train", sampled_ns, end_ns, parent=loop)
            self._add("learner", rank, "rank_barrier", end_ns, max(trained_ns), parent=loop)
        return max(trained_ns)

    def _add(
        self,
        role: str,
        index: int,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        parent: Span | None = None,
        step: int | None = None,
    ) -> Span:
        number = sum(map(len, self._spans.values())) + 1
        run = hash(self.key) & 0xFFFFFFFF
        span = Span(
            trace_id=struct.pack(">QQ", run, number) if parent is None else parent.trace_id,
            span_id=struct.pack(">Q", number),
            parent_span_id=b"" if parent is None else parent.span_id,
            name=name,
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
        )
        if name in names.PHASES:
            phase = {names.RL_PHASE: name, names.RL_PHASE_CLASS: names.PHASES[name].phase_class}
            span.attributes.extend(_attributes(phase))
        if step is not None:
            value = AnyValue(int_value=step)
            span.attributes.append(KeyValue(key=names.RL_LOOP_ITERATION, value=value))
        self._spans.setdefault((role, index), []).append(span)
        return span


def _attributes(pairs: dict[str, str]) -> list[KeyValue]:
    return [
        KeyValue(key=str(key), value=AnyValue(string_value=str(value)))
        for key, value in pairs.items()
    ]
