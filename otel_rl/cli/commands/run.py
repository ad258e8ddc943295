"""``otel-rl run -- CMD``: runs a command and writes all its telemetry to one tracker run."""

import argparse
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.counters import Counter, Outcome
from otel_rl.bridge.delivery.wandb.account import owner_environment
from otel_rl.cli.adapter_environment import adapter_environment
from otel_rl.cli.bridge_end import finish, has_lost
from otel_rl.cli.embedded_bridge import (
    W_AND_B_IS_OFF,
    Embedded,
    embedded_defaults,
    page_link,
    wandb_account,
    without_disabled,
)
from otel_rl.cli.environment import notes_on, reporting_environment
from otel_rl.cli.options import add_bridge_options, settings_of
from otel_rl.cli.run_names import RunNames, run_names
from otel_rl.cli.signal_handlers import handled
from otel_rl.cli.standard_streams import say
from otel_rl.cli.terminal.live_line import live_line
from otel_rl.errors import ConfigError

__all__ = ["add_parser"]

# Exit statuses of shells: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128

# Of a command that ended well, if measurements are missing because they could not be stored.
_LOST = 1

# Signals that ask for an end.
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_LOOK_EVERY_S = 0.5
_NOWHERE = "127.0.0.1:9"  # where nobody listens
_MAX_STEM = 100  # below the limit of names

_EPILOG = """
examples:
  otel-rl run -- python train.py
  otel-rl run --experiment grpo-7b -- torchrun --nproc-per-node 8 train.py
  otel-rl run --experiment grpo-7b --trial lr-3e-6 --tracker jsonl -- ./launch.sh
  otel-rl run --grpc -- ./a-program-whose-sdk-speaks-only-grpc
  otel-rl run --attach grpo/my-run -- python train.py    (train.py calls wandb.init)

Without a W&B key the run is written to ./wandb as an offline run. The exit status is that of CMD; 1
if CMD ended with 0, but measurements were lost because the disk or the journal was full.
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser of ``otel-rl``."""
    parser = commands.add_parser(
        "run",
        description="Start a bridge on free loopback ports, run CMD with OTEL_* variables "
        "that point to it, write all that CMD reports to one tracker run, and finish that run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help="name of the experiment (default: the program's, else that of CMD)",
    )
    parser.add_argument(
        "--trial",
        metavar="NAME",
        help="name of this run in the experiment (default: the program's, else one for each "
        "launch); the same name continues its run",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name that the tracker shows for the run, and its trial unless --trial names one",
    )
    parser.add_argument(
        "--role", metavar="NAME", help="role of processes without one (default: trainer)"
    )
    parser.add_argument(
        "--grpc",
        action="store_true",
        help="CMD reports over gRPC (default: as OTEL_EXPORTER_OTLP_PROTOCOL, else HTTP)",
    )
    parser.add_argument(
        "--no-adapters",
        dest="adapters",
        action="store_false",
        help="do not instrument the frameworks that CMD imports (`otel-rl help integrations`)",
    )
    parser.add_argument(
        "--no-live-line",
        dest="live_line",
        action="store_false",
        help="do not draw the progress line at the bottom of the terminal",
    )
    add_bridge_options(parser)
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command")
    parser.set_defaults(command=_command, usage=parser.format_usage)


def _command(arguments: argparse.Namespace) -> int:
    command: list[str] = arguments.cmd
    misplaced: Sequence[str] = ()
    if command[:1] == ["--"]:
        command = command[1:]
    else:
        misplaced = _options_in(command, arguments.usage())
    if not command:
        say("there is no command to run. Write: otel-rl run -- python train.py")
        return 2
    if shutil.which(command[0]) is None:
        return _not_run(command)
    names = run_names(arguments, os.environ, default_experiment=_name_of(command))
    settings = settings_of(arguments, defaults=embedded_defaults(names))
    for option in misplaced:
        say(
            f"{option} is given to {command[0]}. If it is for otel-rl: otel-rl run {option} "
            f"... -- {command[0]} ...; a `--` before CMD ends this note."
        )
    if arguments.grpc and not settings.grpc.enabled:
        raise ConfigError(
            "--grpc: the bridge does not listen on gRPC (grpc.enabled is false).",
            hint="Remove one of the two.",
        )
    enabled = without_disabled(settings)
    if enabled is None:
        say(
            "W&B is disabled (WANDB_MODE), so nothing is recorded. To record without W&B: "
            "otel-rl run --tracker jsonl -- CMD"
        )
        return _run(command, _recording_nothing(names), lambda: None)
    if enabled is not settings:
        say(W_AND_B_IS_OFF)
    return _run_with(Embedded(enabled, names), command, arguments)


def _run_with(embedded: Embedded, command: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run the command beside a bridge, and return the exit status."""
    bridge, names = embedded.bridge, embedded.names
    status = _NOT_EXECUTABLE
    try:
        for line in _beginning(bridge, names):
            say(line)
        environment = reporting_environment(
            os.environ,
            http=bridge.http,
            names=names,
            grpc=bridge.addresses.grpc,
            prefers_grpc=arguments.grpc,
        )
        environment |= adapter_environment(environment, is_wanted=arguments.adapters)
        for note in notes_on(os.environ, environment):
            say(note)
        if (account := wandb_account(bridge.settings, names.key)) is not None:
            environment |= owner_environment(account)
        with live_line(
            lambda: embedded.bridge.settings.data, names.key, is_wanted=arguments.live_line
        ):
            status = _run(command, environment, embedded.look)
    finally:
        bridge = embedded.bridge
        finish(bridge, exit_code=status, is_over=True, by=_signal_of(status))
    reported = map(bridge.counters.value, (Counter.POINTS_ACCEPTED, Counter.SPANS_ACCEPTED))
    if not any(reported) and not bridge.without_metrics:
        say(f"nothing was reported. {_likely_cause(bridge, status)}".rstrip())
    if has_lost(bridge):
        return status or _LOST
    return status


def _not_run(command: Sequence[str]) -> int:
    """Tell why a command cannot be run and return its exit status as a shell would."""
    name, rest = command[0], " ".join(command)
    path = Path(name)
    if not path.exists():
        say(f"{name}: command not found")
        return _NOT_FOUND
    if path.is_dir():
        say(f"{name}: is a directory. Write: otel-rl run -- python {path}/YOUR_SCRIPT.py")
    elif path.suffix == ".py":
        say(f"{name}: is not executable. Write: otel-rl run -- python {rest}")
    elif os.access(path, os.X_OK):  # it has no slash
        say(f"{name}: command not found. If you mean the file here: otel-rl run -- ./{rest}")
        return _NOT_FOUND
    else:
        say(f"{name}: is not executable. Make it so: chmod +x {name}")
    return _NOT_EXECUTABLE


def _options_in(command: Sequence[str], usage: str) -> Sequence[str]:
    """Return the options of this command that stand behind CMD."""
    own = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage))
    return [name for word in command if (name := word.partition("=")[0]) in own]


def _signal_of(status: int) -> str | None:
    """Return the signal by which a person or a scheduler has ended a command, by its exit status.

    Others, as SIGKILL and SIGSEGV, may come from the kernel because of what the command did.
    """
    return {_SIGNALLED + one: one.name for one in _REQUESTS}.get(status)


def _likely_cause(bridge: Bridge, status: int) -> str:
    if _signal_of(status):
        return ""
    if bridge.counters.value(Counter.REQUESTS, reason=Outcome.HTTP2):
        return "CMD has spoken gRPC to the port for HTTP. Write: otel-rl run --grpc -- CMD"
    if status:
        return (
            f"CMD failed with exit status {status} before it reported. See `otel-rl help "
            "quickstart`."
        )
    return (
        "Does CMD record with OpenTelemetry or otel_rl.log, in a Python that has otel_rl "
        "installed? See `otel-rl help quickstart`."
    )


def _name_of(command: Sequence[str]) -> str:
    """Return the name of the script."""
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else command[0]).stem
    return "".join(filter(str.isprintable, stem))[:_MAX_STEM] or "run"


def _beginning(bridge: Bridge, names: RunNames) -> Iterator[str]:
    """Yield what is said at the start: the run only if no program can name another one."""
    grpc = bridge.addresses.grpc
    places = f"OTLP on http://{bridge.http}{f' and grpc://{grpc}' * bool(grpc)}"
    if names.are_certain:
        yield f"experiment {names.key}, {places}"
        if link := page_link(bridge, names.key):
            yield f"page of the run: {link}"
        return
    yield f"experiment {names.key} unless CMD names another one, {places}"
    if link := page_link(bridge):
        yield f"page with the runs: {link}"


def _recording_nothing(names: RunNames) -> dict[str, str]:
    """Return an environment without a bridge: the command finds its names, and sends nothing."""
    environment = reporting_environment(os.environ, http=_NOWHERE, names=names)
    return {
        **environment,
        **adapter_environment(environment, is_wanted=False),
        "OTEL_SDK_DISABLED": "true",
    }


def _run(command: Sequence[str], environment: dict[str, str], look: Callable[[], None]) -> int:
    """Run the command to its end and return its exit status as a shell would.

    Args:
        command: The words.
        environment: Of the command.
        look: Called again and again meanwhile.
    """
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603  # the user's own command
    except OSError as exc:
        say(f"{command[0]}: {exc.strerror}")
        return _NOT_EXECUTABLE
    with _signals_to(process):
        status = _status_of(process, look)
    return _SIGNALLED - status if status < 0 else status


def _status_of(process: "subprocess.Popen[bytes]", look: Callable[[], None]) -> int:
    # A signal that the kernel gives to another thread is handled when this one wakes up.
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)
        look()


@contextmanager
def _signals_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass signals on to the command; the run is finished in any case."""

    def forward(number: int, _frame: FrameType | None) -> None:
        # A terminal sends Ctrl-C to the whole group, the command included; for many launchers a
        # second one means an immediate exit.
        if not (number == signal.SIGINT and _is_in_foreground()):
            process.send_signal(number)

    with handled(_REQUESTS, forward):
        yield


def _is_in_foreground() -> bool:
    """Return whether the terminal's keys reach this process, with any standard input."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
