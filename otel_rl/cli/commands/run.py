"""``otel-rl run -- CMD``: runs a command and writes all its telemetry to one tracker run."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.counters import Counter, Outcome
from otel_rl.bridge.delivery.wandb.account import OWN_RUN, is_disabled
from otel_rl.bridge.rows.messages import News
from otel_rl.cli.embedded_bridge import (
    Embedded,
    embedded_defaults,
    say_page,
    without_disabled,
)
from otel_rl.cli.ending.end import ENDS, finish, leave, left_to_the_report
from otel_rl.cli.ending.files import StatusFile
from otel_rl.cli.ending.report import Ending
from otel_rl.cli.environment import adapter_environment, notes_on, reporting_environment
from otel_rl.cli.options import add_bridge_options, kinds, settings_of
from otel_rl.cli.own_run import attach_environment, check_attach
from otel_rl.cli.run_names import RunNames, run_names
from otel_rl.cli.signal_handlers import EndRequests, handled
from otel_rl.cli.standard_streams import FULL, say
from otel_rl.cli.terminal import live_line
from otel_rl.errors import ConfigError, JournalFull, OtelRLError
from otel_rl.records import ExperimentKey

DESCRIPTION = (
    "Start a bridge on free loopback ports, run CMD with OTEL_* variables "
    "that point to it, write all that CMD reports to one tracker run, and finish that run."
)

# Exit statuses of shells: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html
_NOT_FOUND, _NOT_EXECUTABLE, _SIGNALLED = 127, 126, 128

# With --fail-on-loss, of a command that ended well: EX_IOERR of sysexits.h, which few commands use.
_LOST = 74

# Signals that ask for an end.
_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_LOOK_EVERY_S = 0.5
_NOWHERE = "127.0.0.1:9"  # where nobody listens
_MAX_STEM = 100  # below the limit of names

EPILOG = """
examples:
  otel-rl run -- python train.py
  otel-rl run --experiment grpo-7b -- torchrun --nproc-per-node 8 train.py
  otel-rl run --experiment grpo-7b --trial lr-3e-6 --tracker jsonl -- ./launch.sh
  otel-rl run --grpc -- ./a-program-whose-sdk-speaks-only-grpc
  otel-rl run --attach -- python train.py    (train.py calls wandb.init of W&B itself)

Without a W&B key the run is written to ./wandb as an offline run. The exit status is that of CMD,
also if data was lost, which the last line then says; with --fail-on-loss it is 74 in place of 0.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
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
        help="do not instrument the frameworks that CMD imports (`otel-rl help frameworks`)",
    )
    parser.add_argument(
        "--no-live-line",
        dest="live_line",
        action="store_false",
        help="do not draw the progress line at the bottom of the terminal",
    )
    parser.add_argument(
        "--fail-on-loss",
        action="store_true",
        help="exit with 74 if CMD ends with 0, but some of its data was lost",
    )
    parser.add_argument(
        "--notify",
        metavar="URL",
        help="send what the diagnosis finds, and a crash, to this webhook (`otel-rl help notify`)",
    )
    parser.add_argument(
        "--stop-on",
        metavar="KIND,...",
        type=kinds,
        default=frozenset(),
        help="end CMD by SIGTERM when the diagnosis finds a cause of such a kind, e.g. nan; "
        "`cause` is any",
    )
    add_bridge_options(
        parser,
        attach={
            "action": "store_const",
            "const": OWN_RUN,
            "help": "write to the W&B run that CMD makes itself (`otel-rl help wandb`)",
        },
    )
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command")
    parser.set_defaults(usage=parser.format_usage)


def command(arguments: argparse.Namespace) -> int:
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
    overrides = {"notify": {"url": arguments.notify}} if arguments.notify else {}
    settings = settings_of(arguments, overrides=overrides, defaults=embedded_defaults(names))
    for option in misplaced:
        say(
            f"{option} is given to {command[0]}. If it is for otel-rl: otel-rl run {option} "
            f"... -- {command[0]} ...; a `--` before CMD ends this note."
        )
    check_attach(arguments, settings)
    if arguments.grpc and settings.listen.grpc is None:
        raise ConfigError(
            "--grpc: the bridge does not listen on gRPC (listen.grpc is off).",
            hint="Remove one of the two.",
        )
    requests = _Requests()
    with handled(_REQUESTS, requests.take):
        enabled = without_disabled(settings)
        if enabled is None:
            say(
                "W&B is disabled (WANDB_MODE), so nothing is recorded. To record without W&B: "
                "otel-rl run --tracker jsonl -- CMD"
            )
            return _run(command, _recording_nothing(names), requests)
        try:
            embedded = Embedded(enabled, names, news=requests.stop_on(arguments.stop_on))
        except OtelRLError as exc:
            if not _is_full_disk(exc):
                raise
            return _run_unreported(command, requests, names, exc, arguments)
        return _run_reported(command, requests, embedded, arguments)


def _run_reported(
    command: Sequence[str],
    requests: "_Requests",
    embedded: Embedded,
    arguments: argparse.Namespace,
) -> int:
    bridge = embedded.bridge
    status_file = StatusFile(bridge.settings.data)
    status = _NOT_EXECUTABLE
    try:
        environment = _environment(embedded, arguments)
        data, key = bridge.settings.data, embedded.names.key
        with left_to_the_report(ENDS), live_line(data, key, is_wanted=arguments.live_line):
            status = _run(command, environment, requests, bridge.began)
    finally:
        requests.end.status = status
        by = _signal_of(status)
        ending = finish(bridge, exit_code=status, is_over=True, by=by, requests=requests.end)
        _say_why_nothing(bridge, ending, status)
        is_written = status_file.write(ending.as_status(status, bridge.settings.data))
        if ending.lost:
            where = f" See {status_file.path}." if is_written else ""
            _say_lost(f"{ending.lost_in_words}.{where}", arguments, status)
        if ending.interrupted:
            leave(_with_loss(status, arguments) if ending.lost else status)
    return _with_loss(status, arguments) if ending.lost else status


def _say_lost(words: str, arguments: argparse.Namespace, status: int) -> None:
    is_changed = _with_loss(status, arguments) != status
    verdict = f"is {_LOST}, for --fail-on-loss" if is_changed else "is that of CMD"
    say(f"DATA WAS LOST: {words} The exit status {verdict}.")


def _with_loss(status: int, arguments: argparse.Namespace) -> int:
    return _LOST if arguments.fail_on_loss and not status else status


def _environment(embedded: Embedded, arguments: argparse.Namespace) -> dict[str, str]:
    bridge, names = embedded.bridge, embedded.names
    _say_beginning(bridge, names, embedded.token)
    environment = reporting_environment(
        os.environ,
        http=bridge.http,
        names=names,
        grpc=bridge.addresses.grpc,
        prefers_grpc=arguments.grpc,
        token=embedded.token,
    )
    environment |= adapter_environment(environment, is_wanted=arguments.adapters)
    for note in notes_on(os.environ, environment):
        say(note)
    environment |= attach_environment(bridge.settings)
    return environment


def _is_full_disk(exc: BaseException) -> bool:
    """Return whether a bridge could not start for want of space, which is no wrong setting."""
    causes = [exc, exc.__cause__]
    return any(
        isinstance(one, JournalFull) or (isinstance(one, OSError) and one.errno in FULL)
        for one in causes
    )


def _run_unreported(
    command: Sequence[str],
    requests: "_Requests",
    names: RunNames,
    exc: OtelRLError,
    arguments: argparse.Namespace,
) -> int:
    """Run the command without a bridge: a full disk is no reason not to train."""
    say(f"{exc.args[0]} CMD runs, and nothing that it reports is kept.")
    status = _run(command, _recording_nothing(names), requests)
    remedy = "Free disk space, or choose another directory with --data."
    _say_lost(f"{exc.args[0]} {remedy}", arguments, status)
    return _with_loss(status, arguments)


def _say_why_nothing(bridge: Bridge, ending: Ending, status: int) -> None:
    reported = map(bridge.counters.value, (Counter.POINTS_ACCEPTED, Counter.SPANS_ACCEPTED))
    if not (any(reported) or bridge.without_metrics or ending.lost):
        say(f"nothing was reported. {_likely_cause(bridge, status)}".rstrip())


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
    """Return options of this command that stand behind the name of CMD, and so are given to CMD."""
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
    if is_disabled("auto", os.environ):
        return "WANDB_MODE disables W&B, and its drop-in records nothing then."
    if status:
        return (
            f"CMD failed with exit status {status} before it reported. See `otel-rl help "
            "troubleshooting`."
        )
    return (
        "Does CMD record with OpenTelemetry or otel_rl.log, in a Python that has otel_rl "
        "installed? See `otel-rl help troubleshooting`."
    )


def _name_of(command: Sequence[str]) -> str:
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else command[0]).stem
    return "".join(filter(str.isprintable, stem))[:_MAX_STEM] or "run"


def _say_beginning(bridge: Bridge, names: RunNames, token: str) -> None:
    """Say where things are: the run only if no program can name another one."""
    grpc = bridge.addresses.grpc
    places = f"OTLP on http://{bridge.http}{f' and grpc://{grpc}' * bool(grpc)}"
    if names.are_certain:
        say(f"experiment {names.key}, {places}")
        say_page("page of the run", bridge, names.key, token)
    else:
        say(f"experiment {names.key} unless CMD names another one, {places}")
        say_page("page with the runs", bridge, None, token)


def _recording_nothing(names: RunNames) -> dict[str, str]:
    """Return an environment without a bridge: the command finds its names, and sends nothing."""
    environment = reporting_environment(os.environ, http=_NOWHERE, names=names)
    return {
        **environment,
        **adapter_environment(environment, is_wanted=False),
        "OTEL_SDK_DISABLED": "true",
    }


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    requests: "_Requests",
    began: Callable[[int], None] = lambda _process_id: None,
) -> int:
    """Run the command to its end and return its exit status as a shell would.

    Args:
        requests: Signals, which are passed on to the command.
        began: Called with the process id of the command.
    """
    if number := requests.end.wait(0):
        return _SIGNALLED + number  # before it was started
    try:
        process = subprocess.Popen(command, env=environment)  # noqa: S603  # the user's own command
    except OSError as exc:
        say(f"{command[0]}: {exc.strerror}")
        return _NOT_EXECUTABLE
    began(process.pid)
    with requests.passed_to(process):
        status = _status_of(process)
    return _SIGNALLED - status if status < 0 else status


def _status_of(process: "subprocess.Popen[bytes]") -> int:
    # A signal that the kernel gives to another thread is handled when this one wakes up.
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_EVERY_S)


class _Requests:
    """Signals that ask for an end: of the command while it runs, else of this one.

    Attributes:
        end: Those for this one.
    """

    def __init__(self) -> None:
        self.end = EndRequests()
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, number: int, _frame: FrameType | None) -> None:
        process = self._process
        if process is None:
            self.end.add(number)
        # A terminal sends Ctrl-C to the whole group, the command included; for many launchers a
        # second one means an immediate exit.
        elif not (number == signal.SIGINT and _is_in_foreground()):
            process.send_signal(number)

    def stop_on(self, kinds: Collection[str]) -> Callable[[ExperimentKey, News], None]:
        """Return what ends the command at the first news of such a kind, from any thread."""
        asked = threading.Event()

        def heard(key: ExperimentKey, news: News) -> None:
            process = self._process
            if news.kind in kinds and process is not None and not asked.is_set():
                asked.set()
                say(f"{key}: {news.words}. CMD gets SIGTERM, for --stop-on {news.kind}.")
                with suppress(OSError):  # it runs as another user, or has just ended
                    process.terminate()

        return heard

    @contextmanager
    def passed_to(self, process: "subprocess.Popen[bytes]") -> Iterator[None]:
        """Pass signals on to the command while the context lasts."""
        self._process = process
        while number := self.end.wait(0):  # while it was being started
            self.take(number, None)
        try:
            yield
        finally:
            self._process = None


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
