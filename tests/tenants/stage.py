"""A bridge with two tenants: one attacks, the other goes on."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx

from tests.process.commands import OTEL_RL, clean_environment
from tests.support import plain_http
from tests.support.ports import free_ports
from tests.support.waiting import wait_until
from tests.tenants.attacks import ATTACKER, Attack
from tests.tenants.sending import Address, attack
from tests.tenants.victim import TIMEOUT_S, VICTIM, Bystander

STOP_TIMEOUT_S = 20.0
"""The bridge's setting: what an attacker has sent may take longer to be made into rows."""

_START_S = 60.0
_LEAD_S = 3.0
_STOP_S = 120.0
_LOG = "bridge.log"
_TOKENS = {name: sha256(name.encode()).hexdigest() for name in (ATTACKER, VICTIM)}


@dataclass(frozen=True)
class Figures:
    """What an attack did to others.

    Attributes:
        attack: Its name.
        victim_failed: Requests of the victim that were not answered with success at the first try.
        victim_late_s: Most seconds from when a step of the victim was complete to its row.
        memory_mib: Most resident memory of the bridge, without its writers.
        stop_s: From SIGTERM, in the middle of the attack, to the end of the bridge.
        exit_status: Of the bridge: 0 if everything was written, 1 if some waits for the next start.
        says_what_waits: Whether it said how to write the rest.
        cpu_s: Of the bridge.
        troubles: What came of each request of the victim that failed.
    """

    attack: str
    victim_failed: int
    victim_late_s: float
    memory_mib: float
    stop_s: float
    exit_status: int | None
    says_what_waits: bool
    cpu_s: float
    troubles: list[str]


def play(what: Attack, directory: Path, seconds: float, *, timeout_s: float = TIMEOUT_S) -> Figures:
    """Attack a new bridge.

    Args:
        what: The attack.
        directory: Of the bridge.
        seconds: How long the victim sends.
        timeout_s: After which the victim gives a request up.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    ours, theirs = context.Pipe()
    with _bridge(directory, what.settings) as (process, http, grpc):
        attacker = context.Process(
            target=attack,
            args=(what, Address(http, grpc, _TOKENS[ATTACKER]), theirs, stop),
            daemon=True,
        )
        attacker.start()
        ours.recv()
        to = Address(http, grpc, _TOKENS[VICTIM])
        try:
            with ExitStack() as stack:
                if what.comes_first:
                    ours.send(None)
                    time.sleep(_LEAD_S)
                bystander = stack.enter_context(
                    Bystander(to, directory, seconds, timeout_s=timeout_s)
                )
                if not what.comes_first:
                    time.sleep(_LEAD_S)
                    ours.send(None)
                troubles, late_s = bystander.result()
            status = Path(f"/proc/{process.pid}/status").read_text()
            cpu_s = _cpu_s(process.pid)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            stop_s = time.monotonic() - began
        finally:
            stop.set()
            attacker.kill()
            attacker.join()
        return Figures(
            what.name,
            len(troubles),
            round(late_s, 2),
            round(_peak_mib(status), 1),
            round(stop_s, 2),
            process.poll(),
            "write the rest with:" in (directory / _LOG).read_text(errors="replace"),
            round(cpu_s, 2),
            [*troubles],
        )


@contextlib.contextmanager
def _bridge(
    directory: Path, settings: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", int, int]]:
    """A bridge of two tenants in a process of its own, with its ports for HTTP and gRPC."""
    http, grpc = free_ports(2)
    file = directory / "bridge.toml"
    file.write_text(
        f"stop_timeout = {STOP_TIMEOUT_S}\n"
        # The victims have no worker that is still to come: rows are late for the attack alone.
        'rows.start_wait = "0s"\n'
        + "".join(
            f'[[team]]\nname = "{name}"\nexperiments = ["{name}/*"]\n'
            f'sha256 = ["{sha256(token.encode()).hexdigest()}"]\n'
            for name, token in _TOKENS.items()
        )
    )
    log = directory / _LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(*OTEL_RL, "bridge", "--config", str(file)),
                *("--tracker", "jsonl", "--data", str(directory)),
                *("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"),
            ],
            cwd=directory,
            env=clean_environment(directory, **settings),
            stdout=output,
            stderr=output,
        )
        try:
            wait_until(lambda: _is_up(process, http, log), "the bridge listens", timeout_s=_START_S)
            yield process, http, grpc
        finally:
            process.kill()
            process.wait()


def _is_up(process: "subprocess.Popen[bytes]", http: int, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return plain_http.get(f"http://127.0.0.1:{http}/healthz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _peak_mib(status: str) -> float:
    """The most resident memory, from ``/proc/PID/status``."""
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _cpu_s(pid: int) -> float:
    """User and system time, from ``/proc/PID/stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
