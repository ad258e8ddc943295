"""A bridge that dies, or that never was, changes neither what a training script does nor its time.

The clock on the wall is not asked, because on a busy machine it tells of the neighbours. Asked is
what the kernel keeps for the process itself: the seconds that its threads computed, in relation to
the same work without telemetry, done in turns in the same loop, so that a slow processor is slow in
both; and the seconds in which the training thread wanted no processor, because it waited for
something. Neighbours add to neither, and a step in which the process was stopped and continued
counts for no waiting. What the bounds guard against is large: an exporter that spins while nobody
answers doubles the first, and steps that wait for attempts, with their back-off of half a second
and then more, add more to the second than all of them may have.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.commands import clean_environment
from tests.process.test_bridge_command import bridge

pytestmark = pytest.mark.process

STATUS = 3  # of the script's own choosing, to be seen through everything

TRAIN = """
import json, signal, sys, time
from pathlib import Path

import otel_rl

STEPS = 400


def compute(step):
    weight = step
    for _ in range(40_000):
        weight = (weight * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return weight / 0x7FFFFFFF


def train(step):
    with otel_rl.step(step), otel_rl.phase("train"):
        loss = compute(step)
    otel_rl.log({f"metric.{i}": loss + i for i in range(20)}, step=step)
    return loss


def waited_s():
    ran_ns, wanted_ns, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    return time.monotonic() - (ran_ns + wanted_ns) / 1e9


def waited_in(step):
    global loss
    before, begun_s = continued.copy(), waited_s()
    loss += train(step)
    step_s = waited_s() - begun_s
    return step_s if before == continued.copy() else 0.0


continued = []  # the kernel runs this handler before anything else of a process that was stopped
signal.signal(signal.SIGCONT, lambda *_: continued.append(True))
otel_rl.init(experiment="e", role="trainer", export_interval_s=0.05)
otel_rl.log({"hello": 1.0}, step=0)
print(otel_rl.flush(timeout_s=float(sys.argv[1])), flush=True)
sys.stdin.readline()

loss = bare_s = idle_s = 0.0
begun_s = time.process_time()
for step in range(1, STEPS + 1):
    idle_s += waited_in(step)
    bare_begun_s = time.thread_time()  # of this thread alone: the exporter's counts as training's
    compute(step)
    bare_s += time.thread_time() - bare_begun_s
trained_s = time.process_time() - begun_s - bare_s
print("loss", loss, flush=True)
Path(sys.argv[2]).write_text(json.dumps([trained_s / bare_s, idle_s]))
sys.exit(int(sys.argv[3]))
"""

NOBODY_S, SOMEBODY_S = 0.2, 60.0
"""How long to wait for the first answer, and for the last: not at all for one that cannot come."""


@dataclass(frozen=True)
class Trained:
    """A script that has ended.

    Attributes:
        status: Its exit status.
        out: What it wrote.
        effort: CPU time of the training loop, exporter included, in that of its bare work.
        waited_s: The time for which the training thread waited for something in its steps.
    """

    status: int
    out: str
    effort: float
    waited_s: float


class Script:
    """The training script. It trains when it is told to."""

    def __init__(self, directory: Path, url: str, *, first_s: float, last_s: float) -> None:
        self._figures = directory / "figures.json"
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", TRAIN, str(first_s), str(self._figures), str(STATUS),
            ],
            env=clean_environment(
                directory, OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_RL_EXIT_TIMEOUT=str(last_s)
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def is_answered(self) -> bool:
        """Whether the bridge has answered its first export, once it has tried."""
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "True\n"

    def train(self) -> Trained:
        out, err = self._process.communicate("go on\n", timeout=280)
        assert "Traceback" not in err
        effort, waited_s = json.loads(self._figures.read_text())
        return Trained(self._process.returncode, out, effort, waited_s)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def script(
    directory: Path, url: str, *, first_s: float = SOMEBODY_S, last_s: float = SOMEBODY_S
) -> Iterator[Script]:
    training = Script(directory, url, first_s=first_s, last_s=last_s)
    try:
        assert training.is_answered() == (first_s == SOMEBODY_S)
        yield training
    finally:
        training.end()


@pytest.fixture(scope="module")
def with_a_bridge(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("bridge")
    with bridge(directory, "--tracker", "jsonl") as service, script(directory, service.url) as it:
        return it.train()


def assert_same(trained: Trained, with_a_bridge: Trained) -> None:
    assert (trained.status, trained.out) == (with_a_bridge.status, with_a_bridge.out)
    assert trained.status == STATUS
    assert trained.effort < 1.5 * with_a_bridge.effort
    assert trained.waited_s < with_a_bridge.waited_s + 1.0


@pytest.mark.slow
def test_a_bridge_that_is_killed_at_the_start_changes_nothing(
    tmp_path: Path, with_a_bridge: Trained
) -> None:
    with bridge(tmp_path) as service, script(tmp_path, service.url, last_s=NOBODY_S) as training:
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        assert_same(training.train(), with_a_bridge)


@pytest.mark.slow
def test_a_bridge_that_never_was_changes_nothing(tmp_path: Path, with_a_bridge: Trained) -> None:
    with socket.socket() as nobody:  # bound, so that nobody else listens there meanwhile
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with script(tmp_path, url, first_s=NOBODY_S, last_s=NOBODY_S) as training:
            assert_same(training.train(), with_a_bridge)
