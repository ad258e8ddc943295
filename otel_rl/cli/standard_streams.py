"""Standard streams of a command, also where its caller has closed them or stops reading."""

import errno
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from otel_rl.redaction import redacted, shown

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of standard output that its user can understand without a traceback."""

_CLEAR_LINE: Final = "\r\x1b[K"

_MODES: Final[Mapping[str, str]] = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    Else the next file, such as the journal, gets the number of the stream, and whatever a library
    or a child process writes there.
    """
    for number, (name, mode) in enumerate(_MODES.items()):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(null, True)  # noqa: FBT003  # positional only
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def abandon_output() -> None:
    """Send the rest of standard output to the null device, so that the exit flushes into that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(text: str) -> None:
    """Print a line on standard error. Without a reader it is lost, and the command goes on."""
    with suppress(OSError):
        # At once: a live line of another thread between the text and its end would erase it.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    """Print why a command ends, without secrets, each line on its own."""
    if is_json():
        print_error(_json_line("ERROR", "otel-rl", text))
        return
    for line in text.splitlines():
        print_error(shown(f"otel-rl: {line}"))


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one a line, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        error = self.formatException(record.exc_info) if record.exc_info else None
        return _json_line(record.levelname, record.name, record.getMessage(), error)


def _json_line(
    level: str, logger: str, message: str, exception: str | None = None, **more: str
) -> str:
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "message": redacted(message),
        **more,
    }
    if exception is not None:
        line["exception"] = redacted(exception)
    return json.dumps(line)


class Formatter(logging.Formatter):
    """Formats lines of the log without secrets and without terminal control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, which takes the place of a live line."""
        return _new_line() + shown(super().format(record))


def _new_line() -> str:
    """Return what removes a live line from a terminal, so that another line takes its place."""
    return _CLEAR_LINE if sys.stderr.isatty() else ""


def say(text: str, *, link: str = "", token: str = "") -> None:
    """Print one line for the user on standard error; standard output belongs to the command.

    Args:
        text: Shown without secrets.
        link: Address without a token, shown behind it.
        token: A secret of this command that its user needs, shown behind the text or in the link.
            In JSON a field of its own, which a collector of logs can leave out.
    """
    if is_json():
        more = {"token": token} if token else {}
        print_error(_json_line("INFO", "otel-rl", text + link, **more))
    else:
        secret = with_token(link, token) if link else token
        print_error(_new_line() + shown(f"otel-rl: {text}") + secret)


def with_token(link: str, token: str) -> str:
    """Return the link that opens a page which asks for a token, if there is one."""
    address, mark, place = link.partition("#")
    return f"{address}?token={token}{mark}{place}" if token else link


def is_json() -> bool:
    """Return whether what a command says is JSON, for a collector of logs."""
    return os.environ.get("OTEL_RL_LOG_FORMAT") == "json"
