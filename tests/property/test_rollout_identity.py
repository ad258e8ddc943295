"""A rollout is one, whatever is repeated, however often the bridge is killed and started again."""

import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.config import BridgeSettings
from otel_rl.records import Batch, ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.view.pages import Pages
from otel_rl.view.questions import Question
from tests.journals.small_run import Life, S
from tests.support.rollouts import progress, sample
from tests.support.slow import examples

T0 = 1_700_000_000 * S
MS = 1_000_000
KEY = ExperimentKey("grpo")
RUN = run_id(KEY.experiment, KEY.trial)
IDENTITIES = [(name, attempt) for name in "ab" for attempt in (1, 2)]

# Of each rollout: it begins, goes on, ends, and a trainer adds to it.
STAGES = 4


def batch(identity: tuple[str, int], stage: int, time_ns: int) -> Batch:
    named: dict[str, Any] = {"id": identity[0], "attempt": identity[1]}
    if stage < 2:
        begun_ns = T0 + IDENTITIES.index(identity) * MS
        return progress(KEY, time_ns, begun_ns=begun_ns, stage=f"turn {stage}", **named)
    if stage == 2:
        return sample(KEY, time_ns, prompt="p", completion="c", reward=identity[1] / 2, **named)
    return sample(KEY, time_ns, advantage=-1.0, outcome="masked", **named)


@dataclass
class Plan:
    """What is sent, in order, and after how much of it the bridge is killed."""

    sent: list[Batch] = field(default_factory=list)
    stages: dict[tuple[str, int], int] = field(default_factory=dict)
    kills: set[int] = field(default_factory=set)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan = Plan()
    for number in range(draw(st.integers(1, 20))):
        repeated = st.none() | st.sampled_from(plan.sent) if plan.sent else st.none()
        if (again := draw(repeated)) is not None:
            plan.sent.append(again)  # by a sender that missed the answer
            continue
        identity = draw(st.sampled_from(IDENTITIES))
        stage = plan.stages.get(identity, -1) + 1
        if stage < STAGES:
            plan.stages[identity] = stage
            plan.sent.append(batch(identity, stage, T0 + (10 + number) * MS))
    plan.kills = draw(st.sets(st.integers(0, 20), max_size=2))
    return plan


def asked(pages: Pages, part: str) -> Mapping[str, Any]:
    answer = pages.answer(Question(f"runs/{RUN}/{part}"))
    body = gzip.decompress(answer.body) if answer.encoding else answer.body
    assert answer.status == 200, body
    found: Mapping[str, Any] = json.loads(body)
    return found


def looked_at(directory: Path) -> tuple[Sequence[Mapping[str, Any]], set[tuple[str, int]]]:
    with closing(Pages(BridgeSettings(data=directory), clock_ns=lambda: T0 + S)) as pages:
        while (found := asked(pages, "rollouts"))["read"] < 1:
            pass  # an answer reads for a moment only
        open_ = asked(pages, "in_flight")
    finished = [dict(zip(found["columns"], one, strict=True)) for one in found["samples"]]
    assert found["all"] == len(finished)
    return finished, {(one["id"], one["attempt"]) for one in open_["rollouts"]}


@settings(max_examples=examples(40), deadline=None)
@given(plans())
def test_a_repeated_record_counts_once(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as name:
        life = Life(Path(name))
        for number, one in enumerate(plan.sent):
            life.take(one, now_ns=T0 + (100 + number) * MS)
            if number in plan.kills:
                life.journal.close()
                life = Life(Path(name))
        life.journal.close()
        if not plan.sent:
            return
        finished, in_flight = looked_at(Path(name))
    assert in_flight == {identity for identity, stage in plan.stages.items() if stage < 2}
    by_identity = {(one["id"], one["attempt"]): one for one in finished}
    assert len(by_identity) == len(finished)
    assert by_identity.keys() == {of for of, stage in plan.stages.items() if stage >= 2}
    for identity, told in by_identity.items():
        assert told["reward"] == identity[1] / 2
        assert told.get("outcome") == ("masked" if plan.stages[identity] == 3 else None)
