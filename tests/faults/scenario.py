"""Runs one scenario from its seed to its verdict.

    senders, workers -> gateway -> bridge -> link -> stand-in W&B server
    (both kinds)        (network,  (the real  (network)   (its history is what the
                        collector)  process)               oracle looks at)

Faults strike while measurements flow. Then everything is well again, every sender delivers what
it has, the bridge is stopped by SIGTERM and has to end with 0, and the books are compared with the
run.
"""

import contextlib
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from otel_rl.semconv.run_id import run_id
from tests.faults.books import Books, Verdict
from tests.faults.disk import SmallDisk, small_disk
from tests.faults.gateway import Gateway
from tests.faults.keeper import MARK, BridgeKeeper, WorkerKeeper, kill, wait_for
from tests.faults.launch import VARIABLE
from tests.faults.link import Link, Trouble
from tests.faults.plan import KILLS, Event, Fault, Plan, plan_of
from tests.faults.senders import Sender
from tests.process.commands import clean_environment
from tests.strays import processes_with
from tests.wandb_server import WandbServer

__all__ = ["Outcome", "run_scenario"]

_START_TIMEOUT_S = 60.0
_TARGET_TIMEOUT_S = 5.0
_CALM_TIMEOUT_S = 90.0
_MAX_RSS_BYTES = 500 << 20
_FEW_BYTES = 4096
_LOOK_AT_RUN_S = 0.3  # it has thousands of rows by then
_SHOWN_LINES = 100
_EXPERIMENT = "faults"

_TROUBLES = {
    Fault.WANDB_REFUSED: Trouble.REFUSED,
    Fault.WANDB_SILENT: Trouble.SILENT,
    Fault.WANDB_LOST_ANSWERS: Trouble.LOST_ANSWERS,
    Fault.WANDB_CUT_ANSWERS: Trouble.CUT_ANSWERS,
}
_STATUSES = {
    Fault.WANDB_500: (500, ""),
    Fault.WANDB_429: (429, ""),
    Fault.WANDB_401: (401, ""),
    Fault.UPLOAD_401: (401, "file_stream"),
}

# Short waits, because the server is on loopback and a run takes seconds.
_SETTINGS = """
stop_timeout_s = {stop_timeout_s}

[journal]
max_bytes = {journal_bytes}

[align]
per_worker = true
window_s = 0.5
allowed_lateness_s = 0.5
lease_s = 1.0
quiet_s = 0.1
settle_s = 0.05

[tracker]
confirm_interval_s = 0.5
keep_confirmed_s = {keep_confirmed_s}
max_retry_s = 1.0
rejected_retry_s = 0.5

[tracker.options]
transmit_interval_s = 1
stall_timeout_s = 4
init_timeout_s = 10
finish_timeout_s = 5
"""


@dataclass
class Outcome:
    """What came of a scenario."""

    seed: int
    verdict: Verdict
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    rows: int = 0
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    timeline: list[str] = field(default_factory=list)
    bridge_said: str = ""

    def report(self) -> str:
        """For whoever has to find out what went wrong."""
        return "\n".join(
            [
                f"seed {self.seed}: replay it with FAULT_SEED={self.seed} make faults",
                *(f"  {problem}" for problem in self.verdict.problems),
                "timeline:",
                *(f"  {line}" for line in self.timeline),
                "the bridge said:",
                *(f"  {line}" for line in self.bridge_said.splitlines()[-_SHOWN_LINES:]),
            ]
        )


def run_scenario(
    seed: int, directory: Path, server: WandbServer, *, mutant: str = "", plan: Plan | None = None
) -> Outcome:
    """Run the scenario of ``seed``.

    Args:
        seed: Of everything that is random.
        directory: Of its own.
        server: Of its own; it is reset first.
        mutant: The safety layer to take out of the bridge, empty for none.
        plan: Instead of the one that the seed makes.
    """
    server.reset()
    begin = time.monotonic()
    plan = plan or plan_of(seed)
    if mutant:
        plan = replace(plan, waits=False)  # what is lost will never come
    scenario = _Scenario(plan, directory, server, mutant)
    outcome = scenario.run()
    outcome.wall_s = time.monotonic() - begin
    return outcome


class _Scenario:
    def __init__(self, plan: Plan, directory: Path, server: WandbServer, mutant: str) -> None:
        self._plan = plan
        self._directory = directory
        self._server = server
        self._mutant = mutant
        self._mark = uuid.uuid4().hex
        self._trial = f"seed-{plan.seed}"
        self._run_id = run_id(_EXPERIMENT, self._trial)
        self._books = Books()
        self._faults: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._kills = 0
        self._timeline: list[str] = []
        self._begin_s = time.monotonic()
        self._over = threading.Event()
        self._restart_pause_s = 0.2
        self._bridge: BridgeKeeper
        self._workers: Sequence[WorkerKeeper] = ()
        self._senders: Sequence[Sender] = ()

    def run(self) -> Outcome:
        data = self._directory / "data"
        with contextlib.ExitStack() as stack:
            disk = SmallDisk(None)
            if self._plan.needs_own_disk():
                disk = stack.enter_context(small_disk(data))
            stack.callback(self._leave_nothing)
            link = stack.enter_context(Link(urlsplit(self._server.base_url).port or 0))
            self._bridge = self._kept_bridge(data, link)
            gateway = stack.enter_context(
                Gateway(lambda: self._bridge.addresses, self._books, self._plan.seed)
            )
            self._start(gateway)
            self._strike(link, disk)
            exit_code = self._calm(gateway, link, disk)
            history = self._server.history(self._run_id)
            verdict = self._books.judge(history)
            self._judge_bridge(verdict, exit_code)
            self._faults += gateway.happened
        return Outcome(
            seed=self._plan.seed,
            verdict=verdict,
            faults=self._faults,
            skipped=self._skipped,
            kills=self._kills,
            rows=len(history),
            peak_rss_bytes=self._bridge.peak_rss_bytes,
            timeline=self._timeline,
            bridge_said=self._bridge.said(),
        )

    def _kept_bridge(self, data: Path, link: Link) -> BridgeKeeper:
        settings = self._directory / "bridge.toml"
        settings.write_text(
            _SETTINGS.format(
                stop_timeout_s=10 if self._mutant else 40,
                journal_bytes=self._plan.journal_bytes,
                keep_confirmed_s=self._plan.keep_confirmed_s,
            )
        )
        module = "tests.faults.launch" if self._mutant else "otel_rl.cli"
        return BridgeKeeper(
            [
                sys.executable, "-m", module, "bridge", "--config", str(settings),
                "--data", str(data), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
            ],
            self._environment(
                **self._server.environment() | {"WANDB_BASE_URL": link.url},
                **({VARIABLE: self._mutant} if self._mutant else {}),
            ),
            self._mark,
            self._directory / "bridge.log",
            lambda: self._restart_pause_s,
        )  # fmt: skip

    def _environment(self, **extra: str) -> Mapping[str, str]:
        mark = {MARK: self._mark, "OTEL_RL_TRIAL": self._trial}
        return clean_environment(self._directory) | mark | extra

    def _start(self, gateway: Gateway) -> None:
        self._bridge.start()
        self._senders = [
            Sender(
                plan,
                gateway.url,
                (_EXPERIMENT, self._trial),
                self._directory / f"acknowledged-{plan.number}.jsonl",
                self._over.is_set,
            )
            for plan in self._plan.senders
        ]
        self._workers = [
            WorkerKeeper(
                plan.number,
                plan.role,
                plan.index,
                gateway.url + plan.path,
                _EXPERIMENT,
                self._environment(),
                self._directory / f"worker-{plan.number}.log",
            )
            for plan in self._plan.workers
        ]
        if not wait_for(self._bridge.is_up, _START_TIMEOUT_S):
            self._books.complain("the bridge did not start")
        for sender in self._senders:
            sender.start()
        begun = self._has_rows if self._plan.begins_late else self._books.acknowledged
        if not wait_for(lambda: bool(begun()), _START_TIMEOUT_S):
            self._books.complain("nothing arrived before the first fault")
        self._begin_s = time.monotonic()

    def _has_rows(self) -> bool:
        return bool(self._server.history(self._run_id))

    # Faults.

    def _strike(self, link: Link, disk: SmallDisk) -> None:
        ends: list[tuple[float, Fault]] = []
        events = list(self._plan.events)
        while events or ends:
            at_s = min([event.at_s for event in events[:1]] + [end_s for end_s, _ in ends])
            time.sleep(max(0.0, at_s - self._now_s()))
            for end in [end for end in ends if end[0] <= at_s]:
                ends.remove(end)
                self._end(end[1], link, disk)
            if events and events[0].at_s <= at_s:
                event = events.pop(0)
                if self._begin(event, link, disk):
                    self._faults[event.fault] += 1
                    self._kills += event.fault in KILLS
                    self._tell(f"{event.fault} ({event.lasts_s:.1f} s, {event.number})")
                    ends.append((self._now_s() + event.lasts_s, event.fault))
                else:
                    self._skipped[event.fault] += 1
                    self._tell(f"{event.fault}: nothing to strike at")
        time.sleep(max(0.0, self._plan.lasts_s - self._now_s()))

    def _begin(self, event: Event, link: Link, disk: SmallDisk) -> bool:
        """Let it happen. Returns whether there was anything to strike at."""
        fault = event.fault
        if fault in _TROUBLES:
            link.suffer(_TROUBLES[fault])
        elif fault in _STATUSES:
            status, path = _STATUSES[fault]
            self._server.fail(status, path=path)
        elif fault is Fault.WANDB_LAGS:
            self._server.lag(event.number)
        elif fault is Fault.DISK_FULL:
            return disk.fill()
        elif fault is Fault.FILE_LIMIT:
            return self._bridge.limit_files(_FEW_BYTES)
        else:
            return self._strike_at_process(event)
        return True

    def _strike_at_process(self, event: Event) -> bool:
        bridge = self._bridge
        self._restart_pause_s = event.lasts_s / 2
        match event.fault:
            case Fault.KILL_BRIDGE:
                return bridge.signal(signal.SIGKILL)
            case Fault.STOP_BRIDGE:
                return bridge.is_up() and bridge.signal(signal.SIGTERM)
            case Fault.KILL_WRITER:
                return self._killed(bridge.writers) > 0
            case Fault.KILL_CORE:
                return self._killed(bridge.cores) > 0
            case Fault.KILL_ALL:
                rest = [*bridge.writers(), *bridge.cores()]
                killed = bridge.signal(signal.SIGKILL)
                return bool(kill(rest)) or killed
            case Fault.KILL_WORKER:
                self._workers[event.number % len(self._workers)].kill()
            case Fault.RESTART_SENDER:
                self._senders[event.number % len(self._senders)].restart()
            case Fault.CLOCK:
                self._senders[event.number % len(self._senders)].set_clock(event.number)
        return True

    def _killed(self, pids: Callable[[], Sequence[int]]) -> int:
        """Kill them as soon as there are any."""
        wait_for(lambda: bool(pids()), _TARGET_TIMEOUT_S)
        return kill(pids())

    def _end(self, fault: Fault, link: Link, disk: SmallDisk) -> None:
        if fault in _TROUBLES:
            link.suffer(Trouble.NONE)
        elif fault in _STATUSES or fault is Fault.WANDB_LAGS:
            self._server.heal()
        elif fault is Fault.DISK_FULL:
            disk.free()
        elif fault is Fault.FILE_LIMIT:
            self._bridge.limit_files(None)

    # The calm end.

    def _calm(self, gateway: Gateway, link: Link, disk: SmallDisk) -> int | None:
        self._tell("calm")
        self._server.heal()
        link.suffer(Trouble.NONE)
        disk.free()
        self._bridge.limit_files(None)
        gateway.calm()
        deadline_s = time.monotonic() + _CALM_TIMEOUT_S
        for sender in self._senders:
            sender.finish()
        for sender in self._senders:
            sender.join(max(0.0, deadline_s - time.monotonic()))
            if sender.is_alive():
                self._books.complain(f"{sender.name} was not answered for")
        told = self._finish_workers(deadline_s)
        if not wait_for(gateway.is_drained, max(0.0, deadline_s - time.monotonic())):
            self._books.complain("what the collector kept was not taken")
        told += [value for sender in self._senders for value in sender.acknowledged()]
        if missing := self._books.unanswered(told):
            self._books.complain(f"senders take for delivered what was not: {missing[:5]}")
        self._over.set()
        self._tell(f"all is sent: {self._books.acknowledged()} acknowledged")
        if self._plan.waits and not wait_for(
            lambda: not self._books.missing(self._server.history(self._run_id)),
            max(0.0, deadline_s - time.monotonic()),
            look_s=_LOOK_AT_RUN_S,
        ):
            self._books.complain("the run is not complete while the bridge runs")
        wait_for(self._bridge.is_up, _START_TIMEOUT_S)
        self._tell("stopping the bridge")
        return self._bridge.stop()

    def _finish_workers(self, deadline_s: float) -> list[float]:
        """What the workers logged that lived to a clean end."""
        logged: list[float] = []
        for worker in self._workers:
            status, said = worker.finish(max(1.0, deadline_s - time.monotonic()))
            if status != 0 or not said.endswith("delivered\n"):
                self._books.complain(f"a worker ended with {status}: {said} (see {worker.log})")
            else:
                first, end, _ = said.split()
                logged += range(int(first), int(end))
        return logged

    def _judge_bridge(self, verdict: Verdict, exit_code: int | None) -> None:
        if exit_code != 0:
            verdict.problems.append(f"the bridge ended with {exit_code}")
        if self._bridge.peak_rss_bytes > _MAX_RSS_BYTES:
            verdict.problems.append(f"the bridge took {self._bridge.peak_rss_bytes >> 20} MiB")
        if "Traceback" in self._bridge.said():
            verdict.problems.append("something happened that the bridge did not foresee")
        run = self._server.run(self._run_id) if self._run_id in self._server.run_ids() else None
        if run is not None and run.rewrites:
            verdict.problems.append(f"{run.rewrites} lines of the run were written over")

    def _leave_nothing(self) -> None:
        self._over.set()
        self._bridge.stop()
        for worker in self._workers:
            worker.kill_for_good()
        for sender in self._senders:
            sender.finish()
        wait_for(lambda: not kill(list(processes_with(MARK, self._mark))), _TARGET_TIMEOUT_S)

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _tell(self, what: str) -> None:
        self._timeline.append(f"{self._now_s():6.2f} s  {what}")
