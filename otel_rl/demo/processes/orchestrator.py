"""Process: starts all others, sends them prompts, watches them, and ends them.

A dead generator is replaced, because replicas hold no state of their own. The death of any other
process ends the run with its reason. In the middle of the run the orchestrator kills a generator
itself, as a realistic failure.

    start all -> Hello from all -> Start to all -> prompts flow, trainers step
    -> the last step is answered with Stop -> generators, reward workers, buffer, store stop, in
    the direction of the data, so that no process loses a peer that it still needs

It also reports for the whole run: its settings are the run's config, and its end sets the run's
status.
"""

import signal
import sys
import time
from pathlib import Path

import numpy as np

import otel_rl
from otel_rl.demo.faults import FaultPlan, Kind
from otel_rl.demo.generator_metrics import observe_process
from otel_rl.demo.members import Child, Members, RunFailed
from otel_rl.demo.messages import (
    Finished,
    GoOn,
    Hello,
    Impair,
    Level,
    Serving,
    StepDone,
    Stop,
)
from otel_rl.demo.result import RESULT_FILE, DemoResult
from otel_rl.demo.scheduling import Admission, Prompts, Replicas
from otel_rl.demo.settings import DemoSettings
from otel_rl.demo.transformer import Parameters
from otel_rl.semconv.names import RlExperimentStatusValues

SETTINGS_FILE = "settings.json"

TICK_S = 0.02
START_TIMEOUT_S = 60.0  # a cold start of a dozen processes on a busy machine
STOP_TIMEOUT_S = 15.0  # of one kind of process: its last work, and the flush of its telemetry
DISMISS_TIMEOUT_S = 3.0
STEP_TIMEOUT_S = 60.0
MAX_FAILED_STARTS = 3  # of one replica; the count restarts after it has served
KILLED_REPLICA = 1
WAITING_INTERVAL_S = 3.0  # of lines before the first step
LINES = 12  # of a whole run
REWARD_BAR = 10
TAGS = ("demo", "grpo")

STOP_ORDER = ("trainer", "generator", "reward", "replay_buffer", "weight_store")


class Orchestrator:
    """Course of one run: start, training with faults and replacements, end."""

    def __init__(self, settings: DemoSettings, work_dir: Path) -> None:
        self._settings = settings
        self._logs = work_dir / "logs"
        self._logs.mkdir(exist_ok=True)
        self._checkpoint = work_dir / "policy-0.f32"
        self._faults = FaultPlan(
            settings.faults, steps=settings.steps, processes=settings.processes
        )
        self._members = Members(settings, self._faults, self._checkpoint, self._logs)
        self._replicas = Replicas(queue_limit=settings.queue_limit)
        self._feed = Prompts(settings)
        self._admission = Admission(settings)
        self._waited_at_s = time.monotonic()
        self._kill_is_due = False
        self._level = Level(0, 0)
        self._done: list[StepDone] = []
        self._tokens = self._requests = 0
        self._begun_s = self._last_step_s = time.monotonic()
        self._shown_step = self._shown_tokens = 0
        self._shown_at_s = self._begun_s

    @property
    def _step(self) -> int:
        """Return the step in progress, from 1."""
        return len(self._done) + 1

    @property
    def _is_complete(self) -> bool:
        return len(self._done) >= self._settings.steps

    def run(self) -> DemoResult:
        """Run the demo to its end or failure. Afterwards no process is left."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._members.interrupt)
        reason, status = "", RlExperimentStatusValues.CRASHED
        try:
            self._start()
            self._train()
            self._stop()
            status = RlExperimentStatusValues.COMPLETE
        except RunFailed as failure:
            reason, status = str(failure), failure.status
            self._dismiss()
        finally:
            self._members.end_all()
            otel_rl.finish(status)
        return self._result(reason)

    # Start

    def _start(self) -> None:
        rng = np.random.default_rng(self._settings.seed)
        policy = Parameters.random(self._settings.shape, rng)
        self._checkpoint.write_bytes(policy.to_bytes())
        members = self._settings.members
        _say(f"Starting {len(members)} processes.")
        for role, index, count in members:
            self._members.start(role, index, count)
        here: set[tuple[str, int]] = set()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while len(here) < len(members):
            for member, message in self._members.receive(timeout_s=TICK_S):
                if isinstance(message, Hello):
                    here.add(member)
                    self._members.register(member, message)
            self._say_waiting(f"{len(here)} of {len(members)} processes have started")
            self._members.fail_on(self._members.exited())
            self._members.check()
            if time.monotonic() > deadline_s:
                raise RunFailed(f"only {len(here)} of {len(members)} processes came up in time")
        _say("All have started: generating the samples of the first step.")
        for member in here:
            self._members.begin(member, step=self._step)
        self._begun_s = self._last_step_s = time.monotonic()
        self._admission.begin()
        self._begin_faults()

    # Faults

    def _begin_faults(self) -> None:
        for fault, victims in self._faults.beginning(self._step):
            whom = ", ".join(f"{role}-{index}" for role, index in sorted(victims)) or "no process"
            _say(f"From step {self._step} on: {fault.words} ({whom}).")
            for process in victims:
                self._members.send(process, Impair({fault.kind: fault.amount}))
            if fault.kind is Kind.STARVATION:
                self._admission.throttle(fault.amount)
            if fault.kind is Kind.EVICTION:
                self._admission.flood()

    # Train

    def _train(self) -> None:
        while not self._is_complete:
            for member, message in self._members.receive(timeout_s=TICK_S):
                self._handle(member, message)
            self._replace_generators(self._members.exited())
            self._feed_replicas()
            self._show()
            self._members.check()
            if time.monotonic() - self._last_step_s > STEP_TIMEOUT_S:
                raise RunFailed(f"no step was made in {STEP_TIMEOUT_S:.0f} s")

    def _handle(self, member: tuple[str, int], message: object) -> None:
        role, index = member
        match message:
            case Hello():
                self._members.begin(member, step=self._step)
            case Serving():
                self._replicas.serving(index)
            case Finished(number, tokens):
                self._requests += 1
                self._tokens += tokens
                recovery_s = self._replicas.finished(index, number)
                if recovery_s is not None:
                    _say(f"{role}-{index} serves again after {recovery_s:.1f} s.")
            case Level():
                self._level = message
            case StepDone():
                self._step_done(message)

    def _step_done(self, done: StepDone) -> None:
        self._done.append(done)
        self._last_step_s = time.monotonic()
        self._begin_faults()  # before the trainers continue
        answer = Stop() if self._is_complete else GoOn()
        self._members.send(("trainer", 0), answer)
        self._kill_is_due |= done.step == self._settings.kill_step

    def _replace_generators(self, exited: list[Child]) -> None:
        for child in exited:
            gives_up = self._replicas.failed_starts(child.index) >= MAX_FAILED_STARTS
            if child.role != "generator" or gives_up:
                self._members.fail_on([child])
            requests = self._replicas.lost(child.index)
            _say(
                f"{child.name} is gone ({child.ending}); {requests} requests are sent to other "
                "replicas; restarting it."
            )
            self._members.start(child.role, child.index, self._settings.generators)

    def _feed_replicas(self) -> None:
        while self._admission.admits(
            buffered=self._level.size, unfinished=self._replicas.unfinished
        ):
            self._replicas.submit(self._feed.next(policy_version=len(self._done)))
        while (given := self._replicas.next()) is not None:
            replica, request = given
            self._members.send(("generator", replica), request)
            if self._kill_is_due and replica == KILLED_REPLICA:
                self._kill()

    def _kill(self) -> None:
        """Kill a generator during its work, so that other replicas must repeat it."""
        self._kill_is_due = False
        _say(f"Killing generator-{KILLED_REPLICA} to show a recovery.")
        self._members.kill("generator", KILLED_REPLICA)

    def _show(self) -> None:
        if not self._done:
            self._say_waiting(f"{self._tokens} tokens generated for the first step")
        elif line := self._due_line():
            _say(line)

    def _due_line(self) -> str:
        """Return how far the run is if that is to be told now; empty if it is not."""
        settings, done = self._settings, len(self._done)
        since = done - self._shown_step
        if since < max(1, settings.steps // LINES) and not (since and self._is_complete):
            return ""
        now_s, last, group = time.monotonic(), self._done[-1], settings.group_size
        rate = (self._tokens - self._shown_tokens) / (now_s - self._shown_at_s)
        self._shown_step, self._shown_tokens, self._shown_at_s = done, self._tokens, now_s
        bar = "#" * round(last.reward * REWARD_BAR)
        return (
            f"step {last.step:>3}/{settings.steps}"
            f"  reward {last.reward:.2f} [{bar:<{REWARD_BAR}}]"
            f"  {rate:5.0f} tokens/s"
            f"  staleness {last.staleness:.1f}"
            f"  buffer {self._level.size * group:>3}/{settings.buffer_groups * group} samples"
            f"  workers {len(self._members)}/{len(settings.members)}"
        )

    def _say_waiting(self, text: str) -> None:
        """Say how far the start is, now and then."""
        now_s = time.monotonic()
        if now_s - self._waited_at_s >= WAITING_INTERVAL_S:
            self._waited_at_s = now_s
            _say(text)

    # Stop

    def _stop(self) -> None:
        self._show()
        for role in STOP_ORDER:
            for index in self._members.alive(role):
                if role != "trainer":  # stopped by the answer to the last step
                    self._members.send((role, index), Stop())
            self._wait_until_gone(role)

    def _wait_until_gone(self, role: str) -> None:
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while self._members.alive(role):
            self._stop_newcomers()
            self._members.fail_on(
                [child for child in self._members.exited() if child.ending != "exit 0"]
            )
            self._members.check()
            if time.monotonic() > deadline_s:
                raise RunFailed(f"{role} did not stop in {STOP_TIMEOUT_S:.0f} s")
        self._stop_newcomers()  # the last counts of those that are gone

    def _stop_newcomers(self) -> None:
        """Stop a replacement that joins late, and count the remaining work of the others."""
        for member, message in self._members.receive(timeout_s=TICK_S):
            if isinstance(message, Hello):
                self._members.send(member, Stop())
            elif not isinstance(message, StepDone):
                self._handle(member, message)

    # Failure

    def _dismiss(self) -> None:
        """After a failure, give all processes a short time to send their telemetry."""
        for role, index, _ in self._settings.members:
            self._members.send((role, index), Stop())
        deadline_s = time.monotonic() + DISMISS_TIMEOUT_S
        while len(self._members) and time.monotonic() < deadline_s:
            self._stop_newcomers()
            self._members.exited()

    def _result(self, reason: str) -> DemoResult:
        staleness = [step.staleness for step in self._done]
        return DemoResult(
            reason=reason,
            logs=self._logs,
            steps=len(self._done),
            rewards=tuple(step.reward for step in self._done),
            staleness=float(np.mean(staleness)) if staleness else None,
            tokens=self._tokens,
            requests=self._requests,
            rerouted=self._replicas.rerouted,
            evicted=self._level.evicted * self._settings.group_size,
            failures=self._replicas.failures,
            recoveries_s=tuple(self._replicas.recoveries_s),
            duration_s=self._last_step_s - self._begun_s,
        )


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Run the demo in the directory given as the only argument."""
    work_dir = Path(sys.argv[1])
    settings = DemoSettings.model_validate_json((work_dir / SETTINGS_FILE).read_text())
    config = settings.hyper_parameters
    otel_rl.init(role="orchestrator", index=0, count=1, config=config, tags=TAGS)
    observe_process()
    result = Orchestrator(settings, work_dir).run()
    (work_dir / RESULT_FILE).write_text(result.model_dump_json(indent=2))
    sys.exit(0 if result.ok else 1)


if __name__ == "__main__":
    main()
