"""Bridges that read inboxes, see ``otel_rl.inbox``.

``otel-rl bridge --inbox DIR`` is the one that the workers of a run start for themselves. It has no
port for requests, and its page needs the token of the link. It ends with the run.
"""

import argparse
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from otel_rl.bridge.bridge import Bridge
from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.journal.places import Beside
from otel_rl.bridge.receive.inbox_reader import InboxReader
from otel_rl.bridge.receive.tokens import own_team
from otel_rl.cli.embedded_bridge import (
    check_embedded,
    of_a_program,
    renamed,
    started,
    without_disabled,
)
from otel_rl.cli.ending.end import finish, leave, write_rest
from otel_rl.cli.ending.files import StatusFile
from otel_rl.cli.ending.report import Ending
from otel_rl.cli.options import settings_of
from otel_rl.cli.signal_handlers import EndRequests, end_requests
from otel_rl.cli.standard_streams import say
from otel_rl.errors import ConfigError, JournalLocked
from otel_rl.inbox import BRIDGE_LOCK, BRIDGE_STARTING, INBOX, WANTED, Lock, make_inbox, segments
from otel_rl.setting_types import OFF

LISTENS_NOWHERE: Final = {
    "listen": {"http": OFF, "grpc": OFF},
    "view": {"readers": "nobody"},
}
"""Settings of a bridge that only writes what is there."""

_LISTENS_FOR_THE_PAGE: Final = {
    "listen": {"http": "127.0.0.1:0", "grpc": OFF, "health": OFF},
}

_LOCK_TRIES: Final = 10
_LOCK_PAUSE_S: Final = 0.05
"""A worker that looks whether a bridge is there holds the lock for a moment."""

_LOOK_S: Final = 0.1

_LINGER_S: Final = 10.0
"""After the last worker: another process of the run may follow."""


def serve_inbox(arguments: argparse.Namespace) -> int:
    """Write the run until its workers have ended, and return the exit status.

    Raises:
        ConfigError: A setting is wrong.
    """
    inbox: Path = arguments.inbox.absolute()
    if inbox.name != INBOX:
        raise ConfigError(
            f"--inbox: must be the directory {INBOX!r} of a run (got {str(inbox)!r}).",
            hint="Workers start this bridge themselves; `otel-rl finish DIR` writes what is left.",
        )
    make_inbox(inbox.parent)
    status = 0
    while not status:
        try:
            with held([inbox]):
                status = _serve(arguments, inbox)
        except JournalLocked:
            return 0  # another one was faster, and writes the run
        if not segments(inbox):
            break  # else a worker has begun while the run was being finished, and saw this bridge
    return status


@contextmanager
def held(inboxes: Sequence[Path]) -> Iterator[None]:
    """Be the bridge of some inboxes for the length of the context. Those that are none are left.

    Raises:
        JournalLocked: Another bridge reads one of them.
    """
    with ExitStack() as locks:
        for inbox in filter(Path.is_dir, inboxes):
            locks.callback(_locked(inbox).close)
        yield


def _locked(inbox: Path) -> Lock:
    """Take the lock, and note who has started this bridge."""
    for _ in range(_LOCK_TRIES):
        try:
            lock = Lock(inbox / BRIDGE_LOCK)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
            continue
        starting, starter = inbox / BRIDGE_STARTING, ""
        with suppress(OSError, ValueError):
            starter = starting.read_text(encoding="utf-8").partition(" ")[0]
        lock.write(f"{os.getpid()} {starter}\n")
        starting.unlink(missing_ok=True)
        return lock
    raise JournalLocked(f"{str(inbox)!r} is read by another bridge.", hint="Wait for its end.")


def of_inboxes(settings: BridgeSettings, inboxes: Sequence[Path]) -> dict[str, Any]:
    """Return the arguments of a bridge that writes what inboxes have; none where none is there."""
    there = [inbox for inbox in inboxes if inbox.is_dir()]
    if not there:
        return {}
    beside = Beside(settings.data.parent, settings.data, renamed)
    return {"is_one_launch": True, "beside": beside, "inboxes": there}


def join_inboxes(inboxes: Sequence[Path], arguments: argparse.Namespace) -> bool:
    """Write the run whose inboxes these are, of one host or several, and end.

    Its journal is beside the first of them.

    Returns:
        Whether nothing is left.

    Raises:
        ConfigError: A setting is wrong.
        JournalLocked: A bridge reads one of them.
    """
    arguments.data = inboxes[0].parent
    settings = of_a_program(settings_of(arguments, overrides=LISTENS_NOWHERE))
    with held(inboxes), end_requests() as requests:
        bridge = started(settings, **of_inboxes(settings, inboxes))
        return write_rest(bridge, requests)


def _finished(bridge: Bridge, requests: EndRequests, *, is_over: bool) -> Ending:
    reader = bridge.inbox
    is_over = is_over and reader is not None and not reader.living
    exit_code = int(is_over and reader is not None and reader.was_killed)
    status_file = StatusFile(bridge.settings.data)
    ending = finish(bridge, exit_code=exit_code, is_over=is_over, requests=requests)
    status_file.write(ending.as_status(exit_code, bridge.settings.data))
    if ending.lost:
        say(f"DATA WAS LOST: {ending.lost_in_words}.")
    return ending


def _serve(arguments: argparse.Namespace, inbox: Path) -> int:
    arguments.data = inbox.parent
    token = secrets.token_urlsafe(24)
    settings = settings_of(arguments, overrides=_LISTENS_FOR_THE_PAGE)
    check_embedded(settings)
    settings = settings.model_copy(update={"team": (own_team(token),)})
    enabled = without_disabled(settings)
    if enabled is None:
        say("W&B is disabled (WANDB_MODE), and is the only tracker: the run is kept, but not shown")
        enabled = settings
    settings = of_a_program(enabled)
    with end_requests() as requests:
        bridge = started(settings, token=token, **of_inboxes(settings, [inbox]))
        number = _wait(bridge, inbox, requests)
        ending = _finished(bridge, requests, is_over=not number)
    if ending.interrupted:
        leave(128 + ending.interrupted)
    return 0 if ending.is_complete else 1


def _wait(bridge: Bridge, inbox: Path, requests: EndRequests) -> int:
    """Wait for the end of the last worker. Returns a signal that has ended the wait, or 0."""
    reader = bridge.inbox
    while reader is not None and inbox.is_dir():
        if number := requests.wait(_LOOK_S):
            return number
        if _is_over(reader, inbox):
            return 0
    return 0


def _is_over(reader: InboxReader, inbox: Path) -> bool:
    if reader.living or not reader.is_empty:
        return False
    # Whoever has started this bridge is at its end, and waits for it.
    return (inbox / WANTED).exists() or time.monotonic() - reader.last_s > _LINGER_S
