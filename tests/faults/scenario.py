"""Runs one scenario from its seed to its verdict.

    senders, workers -> gateway -> bridge -> link -> stand-in W&B server
    (both kinds)        (network,  (the real  (network)   (its history is what the
                        collector)  process)               oracle looks at)

Faults strike while measurements flow. Then everything is well again, every sender delivers what
it has, the bridge is stopped by SIGTERM and has to end with 0, and the books are compared with the
run.
"""

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from otel_rl.run_id import run_id
from tests.faults.aimed import Aimed, aimed_plan
from tests.faults.books import Books, Verdict
from tests.faults.disk import SmallDisk, small_disk
from tests.faults.gateway import Gateway
from tests.faults.keeper import MARK, BridgeKeeper, WorkerKeeper, kill, wait_for
from tests.faults.link import Link
from tests.faults.outcome import Outcome, Timeline
from tests.faults.plan import Plan, plan_of
from tests.faults.senders import Sender
from tests.faults.striker import Stage, Striker
from tests.process.commands import clean_environment
from tests.support.strays import processes_with
from tests.support.wandb_server import WandbServer

STOP_TIMEOUT_S = 120.0
"""How long a bridge may deliver rows when it is told to end. A quiet machine takes seconds."""

_EXPERIMENT = "faults"
_ARCHIVE = {"OTEL_RL_BRIDGE__ARCHIVE__ENABLED": "true"}
_START_TIMEOUT_S = 120.0
_CALM_TIMEOUT_S = 240.0  # a busy machine starts a bridge in half a minute
_END_TIMEOUT_S = 20.0
_LOOK_AT_RUN_S = 0.3  # it has thousands of rows by then
_MAX_RSS_BYTES = 500 << 20

# Told to end; told while W&B was away; no room for the journal at its start; killed.
_EXITS = {0, 1, 2, -9}

# Short waits, because the server is on loopback and a run takes seconds.
_SETTINGS = """
stop_timeout = {stop_timeout_s}

[journal]
max_bytes = {journal_bytes}

[archive]
every = 2.0

[rows]
per_worker = true
window = 0.5
wait = 0.5
worker_timeout = 1.0
start_wait = 0.1

[tracker]
confirm_interval = 0.5
keep_confirmed = {keep_confirmed_s}
max_retry = 1.0

[tracker.options]
transmit_interval_s = 1
stall_timeout_s = 4
init_timeout_s = 30
finish_timeout_s = 5
"""


def run_scenario(
    seed: int,
    directory: Path,
    server: WandbServer,
    *,
    tree: Path | None = None,
    is_aimed: bool = False,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> Outcome:
    """Run the scenario of ``seed``.

    Args:
        seed: Of everything that is random.
        directory: Of its own.
        server: Of its own; it is reset first.
        tree: Of a bridge without a layer of its safety, instead of that of the checkout.
        is_aimed: Whether faults strike where layers of safety act, instead of at random.
        stop_timeout_s: How long the bridge may deliver rows when it is told to end.
    """
    server.reset()
    begin_s = time.monotonic()
    plan = aimed_plan(seed) if is_aimed else plan_of(seed)
    if tree:
        plan = replace(plan, waits=False)  # what is lost will never come
    scenario = _Scenario(
        plan, directory, server, tree, is_aimed=is_aimed, stop_timeout_s=stop_timeout_s
    )
    outcome = scenario.run()
    outcome.wall_s = time.monotonic() - begin_s
    return outcome


class _Scenario:
    def __init__(
        self,
        plan: Plan,
        directory: Path,
        server: WandbServer,
        tree: Path | None,
        *,
        is_aimed: bool,
        stop_timeout_s: float,
    ) -> None:
        self._plan = plan
        self._stop_timeout_s = stop_timeout_s
        self._is_aimed = is_aimed
        self._directory = directory
        self._server = server
        self._tree = tree
        self._mark = uuid.uuid4().hex
        self._trial = f"seed-{plan.seed}"
        self._run_id = run_id(_EXPERIMENT, self._trial)
        self._books = Books()
        self._timeline = Timeline()
        self._over = threading.Event()

    def run(self) -> Outcome:
        data = self._directory / "data"
        with contextlib.ExitStack() as stack:
            disk = SmallDisk(None)
            if self._plan.needs_own_disk():
                disk = stack.enter_context(small_disk(data))
            stack.callback(self._kill_what_is_left)
            link = stack.enter_context(Link(urlsplit(self._server.base_url).port or 0))
            bridge = self._kept_bridge(data, link)
            gateway = stack.enter_context(
                Gateway(lambda: bridge.addresses, self._books, self._plan.seed)
            )
            stack.callback(self._over.set)
            stack.enter_context(bridge)
            stage = Stage(
                bridge,
                self._server,
                link,
                disk,
                [self._sender(number, gateway) for number in range(len(self._plan.senders))],
                [
                    stack.enter_context(self._worker(number, gateway))
                    for number in range(len(self._plan.workers))
                ],
            )
            self._begin(stage)
            striker = Striker(stage, self._timeline)
            striker.strike(self._plan)
            aimed = self._aimed(stage, gateway)
            if self._is_aimed:
                aimed.strike()
            self._timeline.tell("calm")
            striker.make_well()
            gateway.calm()
            self._deliver_all(stage, gateway)
            exit_code = self._stop(bridge)
            history = self._server.history(self._run_id)
            verdict = self._books.judge(history)
            verdict.blame("strikes were in vain", aimed.missed)
            self._judge_bridge(bridge, exit_code, verdict)
            self._books.judge_archive(data / "archive" / self._run_id, verdict)
            return Outcome(
                seed=self._plan.seed,
                verdict=verdict,
                faults=striker.faults + gateway.happened,
                skipped=striker.skipped,
                kills=striker.kills + aimed.kills,
                rows=len(history),
                peak_rss_bytes=bridge.peak_rss_bytes,
                timeline=self._timeline.lines,
                bridge_said=bridge.said(),
            )

    def _aimed(self, stage: Stage, gateway: Gateway) -> Aimed:
        return Aimed(
            stage,
            self._books.acknowledged,
            lambda: len(self._server.history(self._run_id)),
            lambda what: gateway.happened[what],
            self._timeline,
        )

    def _kept_bridge(self, data: Path, link: Link) -> BridgeKeeper:
        settings = self._directory / "bridge.toml"
        settings.write_text(
            _SETTINGS.format(
                stop_timeout_s=self._stop_timeout_s,
                journal_bytes=self._plan.journal_bytes,
                keep_confirmed_s=self._plan.keep_confirmed_s,
            )
        )
        # Of the bridge alone: with a safe path, the directory that it is started in does not count.
        own = {"PYTHONPATH": str(self._tree), "PYTHONSAFEPATH": "1"} if self._tree else {}
        return BridgeKeeper(
            [
                sys.executable, "-m", "otel_rl", "bridge", "--config", str(settings),
                "--data", str(data), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            ],
            self._environment(
                **self._server.environment() | {"WANDB_BASE_URL": link.url} | _ARCHIVE,
                **own,
            ),
            self._mark,
            self._directory / "bridge.log",
        )  # fmt: skip

    def _sender(self, number: int, gateway: Gateway) -> Sender:
        plan = self._plan.senders[number]
        return Sender(
            plan,
            gateway.url,
            (_EXPERIMENT, self._trial),
            self._directory / f"acknowledged-{plan.number}.jsonl",
            self._over.is_set,
        )

    def _worker(self, number: int, gateway: Gateway) -> WorkerKeeper:
        plan = self._plan.workers[number]
        return WorkerKeeper(
            plan,
            gateway.url + plan.path,
            _EXPERIMENT,
            self._environment(),
            self._directory / f"worker-{plan.number}.log",
        )

    def _environment(self, **extra: str) -> Mapping[str, str]:
        mark = {MARK: self._mark, "OTEL_RL_TRIAL": self._trial}
        return clean_environment(self._directory) | mark | extra

    def _begin(self, stage: Stage) -> None:
        """Let measurements flow until the scenario may begin."""
        if not wait_for(stage.bridge.is_up, _START_TIMEOUT_S):
            self._books.complain("the bridge did not start")
        for sender in stage.senders:
            sender.start()
        begun = self._has_rows if self._plan.begins_late else self._books.acknowledged
        if not wait_for(lambda: bool(begun()), _START_TIMEOUT_S):
            self._books.complain("nothing arrived before the first fault")
        self._timeline.begin()

    def _has_rows(self) -> bool:
        return bool(self._server.history(self._run_id))

    def _deliver_all(self, stage: Stage, gateway: Gateway) -> None:
        """Wait until everything that was measured is answered for; and, perhaps, in the run."""
        deadline_s = time.monotonic() + _CALM_TIMEOUT_S
        for sender in stage.senders:
            sender.finish()
        for sender in stage.senders:
            sender.join(max(0.0, deadline_s - time.monotonic()))
            if sender.is_alive():
                self._books.complain(f"{sender.name} was not answered for")
        told = [value for sender in stage.senders for value in sender.acknowledged()]
        for worker in stage.workers:
            told += self._logged_by(worker, max(1.0, deadline_s - time.monotonic()))
        if not wait_for(gateway.is_drained, max(0.0, deadline_s - time.monotonic())):
            self._books.complain("what the collector kept was not taken")
        if missing := self._books.unanswered(told):
            self._books.complain(f"senders take for delivered what was not: {missing[:5]}")
        self._timeline.tell(f"all is sent: {self._books.acknowledged()} acknowledged")
        if self._plan.waits and not wait_for(
            lambda: not self._books.missing(self._server.history(self._run_id)),
            max(0.0, deadline_s - time.monotonic()),
            look_s=_LOOK_AT_RUN_S,
        ):
            self._books.complain("the run is not complete while the bridge runs")

    def _logged_by(self, worker: WorkerKeeper, timeout_s: float) -> list[float]:
        """Let it end in order. Returns what it has logged since it was started last."""
        status, said = worker.finish(timeout_s)
        if status != 0 or not said.endswith("delivered\n"):
            self._books.complain(f"a worker ended with {status}: {said}")
            return []
        first, end, _ = said.split()
        return [float(value) for value in range(int(first), int(end))]

    def _stop(self, bridge: BridgeKeeper) -> int | None:
        wait_for(bridge.is_up, _START_TIMEOUT_S)
        self._timeline.tell("stopping the bridge")
        return bridge.stop(2 * self._stop_timeout_s)

    def _judge_bridge(self, bridge: BridgeKeeper, exit_code: int | None, verdict: Verdict) -> None:
        if exit_code != 0:
            verdict.has_ended_well = False
            verdict.problems.append(f"the bridge ended with {exit_code}")
        verdict.blame("strange ends of the bridge", set(bridge.exits) - _EXITS)
        if bridge.peak_rss_bytes > _MAX_RSS_BYTES:
            verdict.problems.append(f"the bridge took {bridge.peak_rss_bytes >> 20} MiB")
        if "Traceback" in bridge.said():
            verdict.problems.append("something happened that the bridge did not foresee")
        run = self._server.run(self._run_id) if self._run_id in self._server.run_ids() else None
        if run is not None and run.rewrites:
            verdict.problems.append(f"{run.rewrites} lines of the run were written over")

    def _kill_what_is_left(self) -> None:
        wait_for(lambda: not kill(list(processes_with(MARK, self._mark))), _END_TIMEOUT_S)
