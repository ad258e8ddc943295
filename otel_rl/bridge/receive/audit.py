"""Audit log: who writes and who reads which run, as lines of JSON in the log."""

import json
import logging
from collections.abc import Iterable
from typing import Final

from otel_rl.bridge.once_a_minute import OnceAMinute
from otel_rl.bridge.receive.tokens import Grant, TokenShares, token_of
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.signals import Signal

# Its lines are wanted whatever the level of other loggers is.
_log = logging.getLogger("otel_rl.audit")
_log.setLevel(logging.INFO)

_MOST: Final = 1 << 14  # with about 300 bytes each
_NAME_CHARS: Final = 64  # of what a sender or reader has named, who may choose long names


class Audit:
    """Writes the audit lines to the logger ``otel_rl.audit``. Any thread may call any method.

    A line has ``event`` (``write`` or ``read``), ``team``, ``token`` (the name of the entry in the
    settings, and the first 8 digits of the token's SHA-256), ``address``, ``route``, ``run_id``,
    and for ``write`` the first 64 characters of the ``run``'s name, for ``read`` the ``status`` of
    the answer.

    Args:
        is_on: Whether lines are written.
    """

    def __init__(self, *, is_on: bool = False) -> None:
        self._is_on = is_on
        self._lines = OnceAMinute(_MOST)

    def wrote(
        self,
        grant: Grant | None,
        address: str,
        *,
        signal: Signal,
        runs: Iterable[ExperimentKey],
        shares: TokenShares,
    ) -> None:
        """Write a line that a sender has written a signal of some runs."""
        if not self._is_on:
            return
        for key in runs:
            name = str(key)
            if self._lines.is_due("write", _token(grant), address, signal, name):
                team = "" if grant is None else shares.owner_of(key)
                run = {"run": name[:_NAME_CHARS], "run_id": run_id(key.experiment, key.trial)}
                _tell("write", team, grant, {"address": address, "route": str(signal), **run})

    def read(
        self, grant: Grant | None, address: str, *, route: str, run: str = "", status: int = 200
    ) -> None:
        """Write a line that a reader has made a request.

        Args:
            route: The requested resource: a path below ``/api/`` without the run, or a tool of MCP.
            run: The run as the reader has named it; empty for the list of runs. The line has the
                first 64 characters of the route and of the run.
            status: HTTP status of the answer.
        """
        if not self._is_on:
            return
        route, run = route[:_NAME_CHARS], run[:_NAME_CHARS]
        if self._lines.is_due("read", _token(grant), address, route, run, str(status)):
            asked = {"address": address, "route": route, "run_id": run, "status": status}
            _tell("read", token_of(grant), grant, asked)


def _token(grant: Grant | None) -> str:
    return "" if grant is None else f"{grant.name} {grant.token}"


def _tell(event: str, team: str, grant: Grant | None, rest: dict[str, object]) -> None:
    _log.info("%s", json.dumps({"event": event, "team": team, "token": _token(grant), **rest}))
