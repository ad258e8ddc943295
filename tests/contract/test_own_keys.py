"""A program's own keys arrive in a tracker as the program writes them, while one role logs them."""

import gzip
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from otel_rl.bridge.config import BridgeSettings, TrackerSettings
from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.diagnosis.histories import MemoryBound
from otel_rl.bridge.keys import KeyNames
from otel_rl.bridge.rows.messages import Finding
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.stages import diagnosis_process
from otel_rl.mcp.answers import Answers
from otel_rl.records import Batch, ExperimentKey, KeySpec, Row, Signal
from otel_rl.run_id import run_id
from otel_rl.semconv.names import RL_LOOP_ITERATION
from otel_rl.semconv.spec import Tier
from otel_rl.view.pages import Pages
from otel_rl.view.questions import Question
from tests.contract.test_stock_sdk_numbers import T0, S, StockWorker
from tests.support.doors import decode
from tests.support.kept import revived
from tests.support.otlp_requests import Attributes, gauge, key_values, metrics_request, point
from tests.support.view_runs import GRPO, KEYS, LookedAt, write_run
from tests.support.wandb_offline import OfflineRun, read_offline_run, run_directories

KEY = ExperimentKey("grpo")


class Names:
    """The rows of a run as a tracker gets them, over restarts of the bridge."""

    def __init__(self, names: KeyNames = KeyNames.FRAMEWORK) -> None:
        self.run = Run()
        self.catalogue: list[KeySpec] = []
        self.now_ns = T0
        self._names = names

    def take(self, *requests: bytes) -> list[Row]:
        """Return the rows of requests, by a delivery that opens the run anew."""
        self.now_ns += S
        for request in requests:
            batch = Batch(KEY, Signal.METRICS, request, self.now_ns)
            self.run.add(decode(batch), received_ns=self.now_ns)
        return self.close()

    def close(self) -> list[Row]:
        rows = self.run.close(self.now_ns, everything=True)
        self.catalogue += self.run.row_maker.keys.take()
        again = KeySelection(Tier.BASIC, self._names, per_worker=False, keys=lambda: self.catalogue)
        return [*again.rows(rows)]

    def restart(self) -> None:
        self.run = revived(self.run)


def keys(rows: list[Row]) -> set[str]:
    """Keys of the program: those that the bridge adds have sections of their own."""
    ours = ("service/", "goodput/", "otel_rl/")
    return {key for row in rows for key in row.values if not key.startswith(ours)}


class Stock:
    """Worker with the stock SDK, which sets gauges."""

    def __init__(self, role: str) -> None:
        self._worker = StockWorker(f"{role}-0", role)
        self._gauges: dict[str, Any] = {}  # the SDK has no public name of their type

    def sets(self, **values: float) -> bytes:
        for name, value in values.items():
            if name not in self._gauges:
                self._gauges[name] = self._worker.meter.create_gauge(name)
            self._gauges[name].set(value)
        return self._worker.export().SerializeToString()


def test_a_stock_sdk_s_own_name_is_its_key_and_a_library_s_has_the_role() -> None:
    names, worker = Names(), Stock("trainer")
    found = keys(names.take(worker.sets(**{"actor/entropy": 1.0, "http.pool.size": 2.0})))
    assert found == {"actor/entropy", "trainer/http/pool/size"}


@pytest.mark.parametrize("restarts", [False, True], ids=["one bridge", "a second bridge"])
def test_a_second_role_has_its_name_in_front_and_the_first_keeps_the_key(*, restarts: bool) -> None:
    names, trainer, judge = Names(), Stock("trainer"), Stock("judge")
    assert keys(names.take(trainer.sets(acc=1.0))) == {"acc"}
    if restarts:
        names.restart()
    assert keys(names.take(judge.sets(acc=0.5, own=1.0))) == {"judge/acc", "own"}
    if restarts:
        names.restart()
    assert keys(names.take(judge.sets(acc=0.5), trainer.sets(acc=2.0))) == {
        "acc",
        "judge/acc",
        "own",
    }


def test_attributes_follow_an_own_name() -> None:
    names, worker = Names(), StockWorker()
    gauge = worker.meter.create_gauge("score")
    for task in ("math", "code"):
        gauge.set(1.0, {"task": task})
    assert keys(names.take(worker.export().SerializeToString())) == {"score/math", "score/code"}


def test_the_shared_names_have_the_role_for_those_who_want_them() -> None:
    names = Names(KeyNames.OTEL_RL)
    assert keys(names.take(Stock("trainer").sets(acc=1.0))) == {"trainer/acc"}


@pytest.mark.process
def test_the_page_an_agent_a_diagnosis_and_a_tracker_call_a_key_by_one_name(tmp_path: Path) -> None:
    """Rows and histories have the role in front, which nobody meets."""
    named = {"trainer/actor/entropy": "actor/entropy", "judge/acc": "acc", "trainer/acc": "acc"}
    write_run(tmp_path, LookedAt(steps=40, named=named, diverges_at=30, has_phases=False))
    settings = BridgeSettings(data=tmp_path)
    names = {"actor/entropy", "acc", "trainer/acc"}
    pages = Pages(settings)
    agent = Answers(settings, MemoryBound(1 << 20))
    try:
        sections = page_of(pages, "series")["sections"]
        assert names <= {key for section in sections for key in section["keys"]}
        listed = agent.keys(None, None, search="", offset=0, limit=100)["keys"]
        assert {one["key"] for one in listed} == names | {key.key for key in KEYS}
        assert page_of(pages, "series", key="actor/entropy")["xs"]
        assert agent.history(None, None, "acc", None, 10)["points"] == 40
        (cause, *_) = page_of(pages, "diagnosis")["causes"]
    finally:
        pages.close()
        agent.close()
    told = {one["key"] for one in cause["evidence"]}
    assert told & names
    assert not told & {"trainer/actor/entropy", "judge/acc"}
    command = [sys.executable, "-m", "otel_rl", "diagnose", "--data", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "actor/entropy" in printed
    assert "trainer/actor/entropy" not in printed


@pytest.mark.process
@pytest.mark.parametrize(
    ("names", "key"),
    [
        (KeyNames.FRAMEWORK, "actor/entropy"),
        (KeyNames.BOTH, "actor/entropy"),
        (KeyNames.OTEL_RL, "trainer/actor/entropy"),
    ],
)
def test_the_alert_of_a_diagnosis_has_the_name_that_the_tracker_has(
    tmp_path: Path, names: KeyNames, key: str
) -> None:
    named = {"trainer/actor/entropy": "actor/entropy"}
    write_run(tmp_path, LookedAt(steps=40, named=named, diverges_at=30, has_phases=False))
    settings = BridgeSettings(data=tmp_path, tracker=TrackerSettings(names=names))
    process = diagnosis_process(settings)
    try:
        report = process.ask(GRPO, [], timeout_s=120).report
    finally:
        process.end()
    (cause, *_) = report["causes"]
    assert {*re.findall(r"[\w/]*actor/entropy", str(cause))} == {key}


@pytest.mark.process
def test_a_diagnosis_does_not_give_a_value_the_name_of_one_with_another_sign(
    tmp_path: Path,
) -> None:
    """Its numbers are the registry's, so its key is, whose chart shows them."""
    kl, of_program = "trainer/kl", "update/approx_kl/avg"
    named, scales = {kl: of_program}, {kl: -1.0}
    write_run(
        tmp_path,
        LookedAt(steps=40, named=named, scales=scales, diverges_at=30, has_phases=False),
    )
    settings = BridgeSettings(data=tmp_path)
    pages, agent = Pages(settings), Answers(settings, MemoryBound(1 << 20))
    try:
        (cause, *_) = page_of(pages, "diagnosis")["causes"]
        listed = agent.keys(None, None, search="kl", offset=0, limit=100)["keys"]
        drawn = {key: page_of(pages, "series", key=key)["ys"][:20] for key in (kl, of_program)}
        told = {key: agent.history(None, None, key, None, 10)["max"] for key in (kl, of_program)}
    finally:
        pages.close()
        agent.close()
    assert kl in {one["key"] for one in cause["evidence"]}
    assert of_program not in orjson.dumps(cause).decode()
    assert [one["key"] for one in listed] == [of_program]
    assert drawn[kl] == [-value for value in drawn[of_program]]
    assert min(drawn[kl]) > 0
    assert told[kl] > 0 > told[of_program]


def page_of(pages: Pages, part: str, **query: str) -> Any:
    run = run_id(GRPO.experiment, GRPO.trial)
    answer = pages.answer(Question(f"runs/{run}/{part}", query))
    return orjson.loads(gzip.decompress(answer.body) if answer.encoding else answer.body)


def _at_step(step: int) -> NumberDataPoint:
    measured = point(1.0 + step, T0 + step * S)
    measured.attributes.extend(key_values({RL_LOOP_ITERATION: step}))
    return measured


def written_offline(directory: Path, rows: list[Row]) -> OfflineRun:
    """Let the real SDK write rows, and read its file."""
    tracker = WandbTracker()
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), directory, (("mode", "offline"),))
    tracker.open(run)
    tracker.write(rows)
    tracker.close(exit_code=0)
    (made,) = run_directories(directory, run.run_id)
    return read_offline_run(made)


def slow(times: float, *, is_last: bool = False) -> Finding:
    words = f"trainer/1 is {times} times slower"
    amount = {"ratio": times, "after": times, "before": 1.0, "unit": "s"}
    cause = {"kind": "straggler", "role": "trainer", "worker": "trainer/1", "words": words}
    return Finding(3, T0, "cause", words, [{**cause, "amount": amount}], is_last=is_last)


def verl_like() -> dict[str, set[str]]:
    """Three hundred names of one program, by the sections that W&B makes of them."""
    parts = {
        "actor": ["entropy", "kl_loss", "grad_norm", *(f"layers/{n}/norm" for n in range(96))],
        "critic": [f"{of}/{end}" for of in ("score", "vf") for end in ("mean", "max", "min")],
        "val-core": [f"task{n}/acc/mean@{k}" for n in range(40) for k in (1, 8)],
        "timing_s": [f"part_{n}" for n in range(80)],
        "perf": [f"throughput/{n}" for n in range(35)],
    }
    return {section: {f"{section}/{name}" for name in of} for section, of in parts.items()}


@pytest.mark.process
@pytest.mark.usefixtures("no_login")
def test_three_hundred_keys_of_a_program_are_its_own_sections_of_a_w_b_run_over_one_axis(
    tmp_path: Path,
) -> None:
    sections = verl_like()
    wanted = set[str]().union(*sections.values())
    assert len(wanted) == 300
    names, rows = Names(), list[Row]()
    resource: Attributes = {
        "rl.experiment.name": "grpo",
        "rl.worker.role": "trainer",
        "rl.worker.index": 0,
    }
    for step in range(3):
        request = metrics_request(
            *(gauge(_at_step(step), name=name) for name in wanted), resource=resource
        )
        for of_scope in request.resource_metrics[0].scope_metrics:
            of_scope.scope.name = "otel_rl@program"  # that of ``otel_rl.log``, which takes any name
        rows += names.take(request.SerializeToString())
    found = written_offline(tmp_path, rows)
    logged = set().union(*found.history) - {"_step", "_timestamp", "_runtime"}
    assert wanted <= logged
    assert {key for key in logged if key.partition("/")[0] in sections} == wanted
    assert {found.metrics.get(key, found.metrics["*"]) for key in wanted} == {"step"}
    assert all("step" in row for row in found.history if row.keys() & wanted)


@pytest.mark.process
@pytest.mark.usefixtures("no_login")
def test_a_w_b_run_tells_the_last_estimate_of_a_finding_and_alerts_once(tmp_path: Path) -> None:
    names, worker = Names(), Stock("trainer")
    rows = names.take(worker.sets(loss=1.0))
    for finding in (slow(4.3), slow(8.4), slow(8.9, is_last=True)):
        names.run.findings.add(finding)
        rows += names.close()
    found = written_offline(tmp_path, rows)
    assert found.summary["diagnosis/alert"] == "trainer/1 is 8.9 times slower"
    assert (found.summary["diagnosis/verdict"], found.summary["diagnosis/worker"]) == (
        "cause",
        "trainer/1",
    )
    assert [text for _, text in found.alerts] == ["trainer/1 is 4.3 times slower"]
