"""Names of the run of a command, and where each of them comes from. Pure.

Typed on the command line, they override those of the program; from the caller's environment, those
of the program override them; what this command invents counts only where nobody names anything.
"""

import argparse
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from otel_rl.semconv.names import RL_EXPERIMENT_NAME, RL_TRIAL_NAME
from otel_rl.worker.identity import checked_name, parse_resource_attributes
from otel_rl.worker.settings import DEFAULT_EXPERIMENT, LAUNCH, TYPED

NAMES: Final = ("experiment", "trial", "role", "project", "name")
"""What can be typed, each as an option and as a variable ``OTEL_RL_<NAME>``."""

_ATTRIBUTES: Final = {"experiment": RL_EXPERIMENT_NAME, "trial": RL_TRIAL_NAME}
_OF_ONE_RUN: Final = ("trial", "name")

_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # none that looks like another one
_RANDOM: Final = 5  # of 33 million, for launches of one second
_PATH_SAFE: Final = re.compile(r"\w[\w.-]*", re.ASCII)


def variable_of(name: str) -> str:
    return f"OTEL_RL_{name.upper()}"


@dataclass(frozen=True, slots=True)
class RunNames:
    """Names of a command's run.

    Attributes:
        typed: On the command line, by ``NAMES``.
        known: In the caller's environment, where they are not typed.
        default_experiment: What this command calls the experiment.
    """

    typed: Mapping[str, str]
    known: Mapping[str, str]
    launch: str
    default_experiment: str

    def of(self, name: str) -> str | None:
        return self.typed.get(name) or self.known.get(name)

    @property
    def key(self) -> ExperimentKey:
        """Return the run of a program that names none."""
        return ExperimentKey(
            self.of("experiment") or self.default_experiment, self.of("trial") or self.launch
        )

    @property
    def are_certain(self) -> bool:
        """Return whether no program can name another run."""
        return "experiment" in self.typed and "trial" in self.typed

    @property
    def directory(self) -> str:
        """Return the name of a directory for the journal: one for each run, or each launch."""
        if self.of("trial"):
            return run_id(*self.key)
        return self.launch if _PATH_SAFE.fullmatch(self.launch) else run_id("", self.launch)

    def alternatives(self) -> Iterator["RunNames"]:
        """Yield these names, and then those with the next free names of the trial or launch."""
        for key in self.key.numbered():
            if "trial" in self.typed:
                yield replace(self, typed={**self.typed, "trial": key.trial})
            elif "trial" in self.known:
                yield replace(self, known={**self.known, "trial": key.trial})
            else:
                yield replace(self, launch=key.trial)

    def settled(self) -> "RunNames":
        """Return the same names as if experiment and trial had been typed."""
        return replace(self, typed={**self.typed, **self.key._asdict()})


def run_names(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, default_experiment: str
) -> RunNames:
    """Return the names of a command's run.

    A name of the run in the tracker is that of its trial, too, unless that is typed.

    Args:
        arguments: With ``experiment`` and ``trial``, and maybe further ``NAMES``.
        environ: The caller's environment.
        default_experiment: What to call the experiment otherwise.

    Raises:
        ConfigError: A name cannot be used.
    """
    given = {name: getattr(arguments, name, None) for name in NAMES}
    # An empty option is a mistake in a script; an empty variable counts as unset.
    typed = {
        name: checked_name(f"--{name}", text) for name, text in given.items() if text is not None
    }
    if "name" in typed:
        typed.setdefault("trial", typed["name"])
    is_inside = bool(environ.get(DEFAULT_EXPERIMENT))
    resource = parse_resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    known = {}
    for name in NAMES:
        # Of another command around this one: what it invented, and the name of its own run.
        of_another = is_inside and name in environ.get(TYPED, "").split(",")
        if name in typed or (of_another and name in _OF_ONE_RUN):
            continue
        text = environ.get(variable_of(name)) or (
            "" if is_inside else resource.get(_ATTRIBUTES.get(name, ""))
        )
        if text:
            known[name] = checked_name(variable_of(name), text)
    launch = "" if is_inside else environ.get(LAUNCH, "")
    return RunNames(
        typed,
        known,
        checked_name(LAUNCH, launch) if launch else _new_launch(),
        checked_name(variable_of("experiment"), default_experiment),
    )


def _new_launch() -> str:
    letters = "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{letters}"
