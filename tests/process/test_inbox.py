"""A program without an endpoint and without `otel-rl run`: its run is written all the same.

What it reports goes to files below the data directory, which a bridge that it starts reads.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from otel_rl.inbox import BRIDGE_LOCK, INBOX, bytes_in, is_held
from otel_rl.run_id import run_id
from tests.process.commands import clean_environment, growing_lines, jsonl_rows, otel_rl
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

PATIENCE_S = 120.0

STEPS = """
import otel_rl

otel_rl.init(experiment="e", role="trainer")
for step in range(40):
    with otel_rl.step(step):
        otel_rl.log({"loss": float(step)})
"""

TOLD = """
import sys
import otel_rl

otel_rl.init(experiment="e", role="trainer", export_interval_s=0.05)
for line in sys.stdin:
    first, last = map(int, line.split())
    for step in range(first, last):
        otel_rl.log({"loss": float(step)}, step=step)
    print(otel_rl.flush(), flush=True)
"""
"""Logs the steps that it is told, and answers once they are in the file."""


def environment(directory: Path, **extra: str) -> dict[str, str]:
    given = {"OTEL_RL_EMBED": "on", "OTEL_RL_BRIDGE__TRACKER__NAME": "jsonl", **extra}
    return {name: text for name, text in clean_environment(directory, **given).items() if text}


def python(code: str, directory: Path, **extra: str) -> "subprocess.CompletedProcess[str]":
    """Run a program as its user does: `python train.py` in a directory."""
    (directory / "train.py").write_text(code)
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=directory,
        env=environment(directory, **extra),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )


class Told:
    """A program that logs what it is told.

    Attributes:
        process: It.
        run: Directory of its run.
    """

    def __init__(self, process: "subprocess.Popen[str]", run: Path) -> None:
        self.process = process
        self.run = run

    def log(self, first: int, last: int) -> None:
        """Have it log the steps of a range; they are in the file then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{first} {last}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "True\n"

    def bridge(self) -> int:
        """Return the process id of the bridge that reads now."""
        path = self.run / INBOX / BRIDGE_LOCK
        wait_until(lambda: is_held(path) and path.read_text(), "a bridge", timeout_s=PATIENCE_S)
        return int(path.read_text().split()[0])

    def end(self) -> str:
        """Let it end; returns what it said."""
        _, said = self.process.communicate(timeout=2 * PATIENCE_S)
        assert self.process.returncode == 0, said
        return said


@contextmanager
def told(
    directory: Path, experiment: str = "e", trial: str = "default", **extra: str
) -> Iterator[Told]:
    process = subprocess.Popen(
        [sys.executable, "-c", TOLD],
        cwd=directory,
        env=environment(directory, **extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Told(process, directory / ".otel_rl" / run_id(experiment, trial))
    finally:
        process.kill()
        process.communicate()


def has_ended(run: Path) -> bool:
    """Whether no bridge reads the inbox of a run, and nothing is left in it."""
    inbox = run / INBOX
    return not is_held(inbox / BRIDGE_LOCK) and not bytes_in(inbox)


def wait_for_end(run: Path) -> None:
    wait_until(lambda: has_ended(run), "the end of the bridge", timeout_s=PATIENCE_S)


def losses(directory: Path, experiment: str = "e", trial: str = "default") -> Mapping[int, float]:
    """The loss of each step; a step has one row with it."""
    rows = jsonl_rows(directory, experiment, trial)
    found = [(row.step, row.values["trainer/loss"]) for row in rows if "trainer/loss" in row.values]
    assert len({step for step, _ in found}) == len(found), found
    return dict(found)


def column(directory: Path, key: str, trial: str = "default") -> Mapping[int, float]:
    """Return the newest value of each step."""
    rows = jsonl_rows(directory, "e", trial)
    return {row.step: row.values[key] for row in rows if key in row.values}


def each_once(steps: Sequence[int] | range) -> Mapping[int, float]:
    return {step: float(step) for step in steps}


def test_a_plain_program_has_a_run_with_all_of_its_steps(tmp_path: Path) -> None:
    done = python(STEPS, tmp_path, OTEL_RL_TRIAL="")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / ".otel_rl").glob("*/")
    (lines,) = run.glob("*.jsonl")
    values = [(line["step"], line["values"]) for line in growing_lines(lines)]
    assert {step: of["trainer/loss"] for step, of in values if "trainer/loss" in of} == each_once(
        range(40)
    )
    last = [line for line in done.stderr.splitlines() if line.startswith("otel-rl: run e/")][-1]
    assert "rows in jsonl" in last
    assert has_ended(run)
    assert json.loads((run / "status.json").read_text())["runs"][0]["finished"]


@pytest.mark.slow
def test_nobody_else_can_read_or_write_what_a_program_reports(tmp_path: Path) -> None:
    with told(tmp_path) as program:
        program.log(0, 3)
        run = program.run
        modes = {
            stat.S_IMODE(path.stat().st_mode) | (0o400 if path.is_dir() else 0)
            for path in (tmp_path / ".otel_rl", *(tmp_path / ".otel_rl").rglob("*"))
        }
        assert all(not mode & 0o077 for mode in modes)
        assert [*(run / INBOX).glob("*.otlp")]
        program.end()
    wait_for_end(run)


def test_what_a_killed_program_has_written_is_in_its_run_once(tmp_path: Path) -> None:
    with told(tmp_path) as program:
        program.log(0, 10)
        program.bridge()
        program.log(10, 25)
        program.process.kill()
        program.process.wait()
        wait_for_end(program.run)
    assert losses(tmp_path) == each_once(range(25))
    described = otel_rl("runs", "--json", cwd=tmp_path, env=environment(tmp_path))
    assert "crashed" in described.out


@pytest.mark.slow
def test_after_a_killed_bridge_another_one_goes_on_and_writes_no_step_twice(tmp_path: Path) -> None:
    with told(tmp_path) as program:
        program.log(0, 10)
        first = program.bridge()
        program.log(10, 20)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: program.bridge() != first, "another bridge", timeout_s=PATIENCE_S)
        program.log(20, 30)
        program.end()
        wait_for_end(program.run)
    assert losses(tmp_path) == each_once(range(30))


def test_a_program_and_its_bridge_that_are_killed_are_finished_by_the_command(
    tmp_path: Path,
) -> None:
    with told(tmp_path) as program:
        program.log(0, 10)
        bridge = program.bridge()
        os.kill(bridge, signal.SIGSTOP)  # what follows is in the file only
        program.log(10, 20)
        program.process.kill()
        os.kill(bridge, signal.SIGKILL)
        program.process.wait()
    assert bytes_in(program.run / INBOX)
    done = otel_rl("finish", program.run, cwd=tmp_path, env=environment(tmp_path))
    assert done.status == 0, done.err
    assert losses(tmp_path) == each_once(range(20))
    assert has_ended(program.run)


CHILDREN = """
import multiprocessing
import otel_rl


def generate(index):
    for step in range(20):
        otel_rl.log({"tokens": float(index)}, step=step, reduce="sum")


if __name__ == "__main__":
    otel_rl.init(experiment="e", role="trainer")
    children = [
        multiprocessing.get_context(kind).Process(
            target=generate, args=[index + 1], name=f"generator-{index}"
        )
        for index, kind in enumerate(["fork", "spawn"])
    ]
    for child in children:
        child.start()
    for step in range(20):
        otel_rl.log({"loss": float(step)}, step=step)
    for child in children:
        child.join()
"""


def test_children_of_a_program_are_in_its_run(tmp_path: Path) -> None:
    done = python(CHILDREN, tmp_path, OTEL_RL_BRIDGE__ROWS__START_WAIT="600")
    assert done.returncode == 0, done.stderr
    run = tmp_path / ".otel_rl" / run_id("e", "default")
    wait_for_end(run)
    assert losses(tmp_path) == each_once(range(20))
    assert column(tmp_path, "generator/tokens") == dict.fromkeys(range(20), 3.0)


KERNEL = """
import sys

for line in sys.stdin:
    try:
        exec(line, globals())
        print("done", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def cell(kernel: "subprocess.Popen[str]", code: str) -> str:
    """Run a line of a notebook and return what it prints first."""
    assert kernel.stdin is not None
    assert kernel.stdout is not None
    kernel.stdin.write(f"{code}\n")
    kernel.stdin.flush()
    return kernel.stdout.readline().strip()


def test_a_run_in_a_notebook_ends_with_finish_and_survives_interrupts(tmp_path: Path) -> None:
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_RL_TRIAL=""),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        begin = "import otel_rl; otel_rl.init(experiment='e', role='trainer', trial={!r})"
        log = "[otel_rl.log({{'loss': float(n)}}, step=n) for n in range({}, {})]"
        assert cell(kernel, begin.format("first")) == "done"
        assert cell(kernel, log.format(0, 10)) == "done"
        assert cell(kernel, "otel_rl.flush()") == "done"
        program = Told(kernel, tmp_path / ".otel_rl" / run_id("e", "first"))
        bridge = program.bridge()
        assert cell(kernel, "print('busy', flush=True); import time; time.sleep(600)") == "busy"
        os.killpg(kernel.pid, signal.SIGINT)
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "interrupted\n"
        assert cell(kernel, log.format(10, 20)) == "done"
        assert program.bridge() == bridge
        assert cell(kernel, f"otel_rl.finish(timeout_s={PATIENCE_S})") == "done"
        assert has_ended(program.run)
        assert losses(tmp_path, "e", "first") == each_once(range(20))
        # The kernel goes on, with another run.
        assert cell(kernel, begin.format("second")) == "done"
        assert cell(kernel, log.format(0, 5)) == "done"
        assert cell(kernel, f"otel_rl.finish(timeout_s={PATIENCE_S})") == "done"
        assert losses(tmp_path, "e", "second") == each_once(range(5))
    finally:
        _, said = kernel.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in said


def test_a_program_without_a_directory_trains_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = python(STEPS, tmp_path, OTEL_RL_DATA=str(tmp_path / "file"), OTEL_RL_EXIT_TIMEOUT="1")
    assert done.returncode == 0
    assert f"otel-rl: {tmp_path / 'file'} is not writable" in done.stderr
    assert not (tmp_path / ".otel_rl").exists()


@pytest.mark.slow
def test_a_program_started_again_under_its_names_goes_on_with_its_run(tmp_path: Path) -> None:
    for first, last in ((0, 10), (10, 20)):
        with told(tmp_path) as program:
            program.log(first, last)
            program.end()
            wait_for_end(program.run)
    assert losses(tmp_path) == each_once(range(20))


@pytest.mark.slow
def test_two_programs_in_one_directory_have_runs_and_bridges_of_their_own(tmp_path: Path) -> None:
    with (
        told(tmp_path, trial="a", OTEL_RL_TRIAL="a") as one,
        told(tmp_path, trial="b", OTEL_RL_TRIAL="b") as other,
    ):
        one.log(0, 5)
        other.log(0, 7)
        assert one.bridge() != other.bridge()
        one.end()
        other.end()
        wait_for_end(one.run)
        wait_for_end(other.run)
    assert losses(tmp_path, trial="a") == each_once(range(5))
    assert losses(tmp_path, trial="b") == each_once(range(7))


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    done = python(STEPS, tmp_path, OTEL_RL_EMBED="off", OTEL_RL_EXIT_TIMEOUT="1")
    assert done.returncode == 0
    assert not (tmp_path / ".otel_rl").exists()


NODE = """
import otel_rl

otel_rl.init(experiment="e", role="trainer")
for step in range(40):
    otel_rl.log({"loss": float(step), "here": 1.0}, step=step, reduce="sum")
"""


def test_two_nodes_become_one_run(tmp_path: Path) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_NTASKS": "2", "OTEL_RL_TRIAL": ""}
    nodes = [tmp_path / "node-0", tmp_path / "node-1"]
    for rank, node in enumerate(nodes):
        node.mkdir()
        done = python(NODE, node, SLURM_PROCID=str(rank), **job)
        assert done.returncode == 0
        assert "otel-rl: this job is on several hosts" in done.stderr
        assert not [*node.rglob("journal.db")]
    again = otel_rl("replay", *nodes, "--tracker", "jsonl", cwd=tmp_path, env=environment(tmp_path))
    assert again.status == 0, again.err
    assert column(tmp_path, "trainer/here", "slurm-7") == dict.fromkeys(range(40), 2.0)
    assert not any(bytes_in(path) for path in tmp_path.rglob(INBOX))


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def namespace() -> Sequence[str]:
    """Return the words before a command that make it the first process of a container."""
    try:
        subprocess.run([*NAMESPACE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no process namespaces here: {exc}")
    return NAMESPACE


@pytest.mark.slow
def test_the_first_process_of_a_container_waits_for_the_bridge_that_ends_with_it(
    tmp_path: Path, namespace: Sequence[str]
) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    done = subprocess.run(
        [*namespace, sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_RL_EXIT_TIMEOUT="2"),  # the bridge takes longer to end
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path) == each_once(range(40))
    status = json.loads(
        (tmp_path / ".otel_rl" / run_id("e", "default") / "status.json").read_text()
    )
    assert status["runs"][0]["finished"]
    assert "goes on" not in done.stderr


def answer(url: str, token: str = "", body: bytes | None = None) -> int:
    """Return the status of a request."""
    headers = {"content-type": "application/x-protobuf"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    request = Request(url, body, headers)  # http
    try:
        with urlopen(request, timeout=60) as response:  # http
            return int(response.status)
    except HTTPError as error:
        return error.code


@pytest.mark.slow
def test_its_page_needs_the_token_of_the_link_and_nobody_can_send_to_it(tmp_path: Path) -> None:
    with told(tmp_path) as program:
        program.log(0, 3)
        log = program.run / "bridge.log"
        link = re.compile(r"page of run e/default: (http://[^/]+/)\?token=([\w-]+)#/run/")

        def said() -> "re.Match[str] | None":
            return link.search(log.read_text()) if log.exists() else None

        wait_until(said, "the link to the page", timeout_s=PATIENCE_S)
        match = said()
        assert match is not None
        root, token = match.groups()
        assert answer(f"{root}api/runs") == 401
        assert answer(f"{root}api/runs", token) == 200
        assert answer(f"{root}v1/metrics", token, b"") == 404
        assert answer(f"{root}v1/metrics", body=b"") == 404
        program.end()
        wait_for_end(program.run)


def test_a_library_for_tests_switches_it_off(tmp_path: Path) -> None:
    done = python(
        f"import otel_rl.testing\n{STEPS}", tmp_path, OTEL_RL_EMBED="", OTEL_RL_EXIT_TIMEOUT="1"
    )
    assert done.returncode == 0
    assert not (tmp_path / ".otel_rl").exists()


WITH_A_FORK = """
import os
import sys
import otel_rl

otel_rl.init(experiment="e", role="trainer")
otel_rl.log({"loss": 0.0}, step=0)
otel_rl.flush()
if os.fork() == 0:
    sys.stdin.readline()  # a child that reports nothing, such as a data loader
    os._exit(0)
print("forked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_killed_program_is_gone_though_its_forked_child_lives(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_A_FORK],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    program = Told(process, tmp_path / ".otel_rl" / run_id("e", "default"))
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    program.bridge()
    process.kill()
    process.wait()
    wait_for_end(program.run)
    assert losses(tmp_path) == {0: 0.0}
    process.communicate()  # closes what the child reads


CHANGED = """
import os
before = dict(os.environ)
import otel_rl

otel_rl.init(experiment="e", role="trainer")
print({name for name in os.environ if os.environ[name] != before.get(name)})
print(os.environ["OTEL_RL_DATA"])
otel_rl.log({"loss": 0.0}, step=0)
"""


def test_children_get_the_launch_and_the_directory_and_no_endpoint(tmp_path: Path) -> None:
    done = python(CHANGED, tmp_path)
    names, data = done.stdout.splitlines()
    assert eval(names) == {
        *("OTEL_RL_LAUNCH", "OTEL_RL_DATA"),
        *("OTEL_RL_DEFAULT_EXPERIMENT", "OTEL_RL_DEFAULT_TRIAL"),  # of any worker
    }
    assert data == str(tmp_path / ".otel_rl")


def test_a_bridge_that_cannot_start_says_why_and_nothing_is_lost(tmp_path: Path) -> None:
    run = tmp_path / ".otel_rl" / run_id("e", "default")
    done = python(STEPS, tmp_path, OTEL_RL_BRIDGE__TRACKER__NAME="nonsense")
    assert done.returncode == 0
    assert "nonsense" in done.stderr
    assert f"otel-rl finish {run}" in done.stderr
    later = otel_rl("finish", run, cwd=tmp_path, env=environment(tmp_path))
    assert later.status == 0, later.err
    assert losses(tmp_path) == each_once(range(40))
