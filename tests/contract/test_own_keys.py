"""A program's own keys arrive in a tracker as the program writes them, while one role logs them."""

from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.delivery.selection import KeyNames, KeySelection
from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.wandb.tracker import WandbTracker
from otel_rl.bridge.otlp.decode import decode
from otel_rl.bridge.rows.messages import Finding
from otel_rl.bridge.rows.run import Run
from otel_rl.records import Batch, ExperimentKey, KeySpec, Row, Signal
from otel_rl.run_id import run_id
from otel_rl.semconv.spec import Tier
from tests.contract.test_stock_sdk_numbers import T0, S, StockWorker
from tests.support.kept import revived
from tests.support.wandb_offline import read_offline_run, run_directories

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


def slow(times: float, *, is_last: bool = False) -> Finding:
    words = f"trainer/1 is {times} times slower"
    amount = {"ratio": times, "after": times, "before": 1.0, "unit": "s"}
    cause = {"kind": "straggler", "role": "trainer", "worker": "trainer/1", "words": words}
    return Finding(3, T0, "cause", words, [{**cause, "amount": amount}], is_last=is_last)


@pytest.mark.process
@pytest.mark.usefixtures("no_login")
def test_a_w_b_run_tells_the_last_estimate_of_a_finding_and_alerts_once(tmp_path: Path) -> None:
    names, worker = Names(), Stock("trainer")
    rows = names.take(worker.sets(loss=1.0))
    for finding in (slow(4.3), slow(8.4), slow(8.9, is_last=True)):
        names.run.findings.add(finding)
        rows += names.close()
    tracker = WandbTracker()
    run = RunInfo(KEY, run_id(KEY.experiment, KEY.trial), tmp_path, (("mode", "offline"),))
    tracker.open(run)
    tracker.write(rows)
    tracker.close(exit_code=0)
    (made,) = run_directories(tmp_path, run.run_id)
    found = read_offline_run(made)
    assert found.summary["diagnosis/alert"] == "trainer/1 is 8.9 times slower"
    assert (found.summary["diagnosis/verdict"], found.summary["diagnosis/worker"]) == (
        "cause",
        "trainer/1",
    )
    assert [text for _, text in found.alerts] == ["trainer/1 is 4.3 times slower"]
