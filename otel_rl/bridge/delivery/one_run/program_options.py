"""Fills options of a tracker with what the program of a run names for it. Pure.

``tracker.options.project = "team-{project}"`` lets the senders of a bridge name the end of their
project, and nothing else: an option without a placeholder is the operator's alone.
"""

from collections.abc import Sequence
from typing import Final

from otel_rl.bridge.delivery.wandb.account import OWN_RUN
from otel_rl.records import Description

__all__ = ["filled"]

_MODES: Final = {"online": "keyed", "offline": "offline", "dryrun": "offline"}
"""A program's words and the tracker's: one that wants to be online may run without a key."""


def filled(
    options: Sequence[tuple[str, str]], description: Description
) -> tuple[tuple[str, str], ...]:
    """Return the options; a placeholder that the program names nothing for stays in them.

    A run of another process is where that has it, once it is known.
    """
    if dict(options).get("attach", "") not in ("", OWN_RUN):
        return tuple(options)
    named = {
        "project": description.project,
        "entity": description.entity,
        "mode": _MODES.get(description.mode, ""),
    }
    return tuple(
        (name, text.replace(f"{{{name}}}", named[name]) if named.get(name) else text)
        for name, text in options
    )
