"""Command, code and machine of this process, as the attributes of ``rl.worker.start``.

Secrets in arguments and in the difference are masked. Nothing here raises; what cannot be read in
time is left out.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.redaction import redacted
from otel_rl.semconv.names import (
    OS_DESCRIPTION,
    PROCESS_COMMAND_ARGS,
    PROCESS_EXECUTABLE_PATH,
    PROCESS_RUNTIME_VERSION,
    RL_WORKER_DIFF,
    RL_WORKER_PACKAGES,
    VCS_REF_HEAD_REVISION,
    VCS_REPOSITORY_URL_FULL,
)
from otel_rl.worker.events.masking import masked, masked_lines
from otel_rl.worker.fork_barrier import IMPORTS
from otel_rl.worker.otlp.anyvalue import Plain

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["provenance"]

_GIT_TIMEOUT_S: Final = 10.0  # of each call; a working tree may be on a slow network disk

_MAX_PACKAGES: Final = 2_000

_HEAD: Final = re.compile(r"Metadata-Version: \S+\nName: (\S+)\nVersion: (\S+)\n(?![ \t])")
_MAX_DIFF_BYTES: Final = 96 << 10
"""Below the bridge's bound of a text."""


def provenance(*, with_code: bool) -> Mapping[str, Plain]:
    """Find out what this process runs, and where. Takes up to some seconds.

    Args:
        with_code: Also the difference to the commit and the installed packages, which are the same
            for all workers of a role.
    """
    command = getattr(sys, "orig_argv", None) or sys.argv
    found: dict[str, Plain] = {
        PROCESS_COMMAND_ARGS: masked([*command[1:]] or [*command]),
        PROCESS_EXECUTABLE_PATH: sys.executable or "",
        PROCESS_RUNTIME_VERSION: platform.python_version(),
        OS_DESCRIPTION: f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
    }
    directory = _directory()
    commit = _git(directory, "rev-parse", "HEAD")
    if commit:
        found[VCS_REF_HEAD_REVISION] = commit.strip()
        found[VCS_REPOSITORY_URL_FULL] = redacted(
            _git(directory, "config", "--get", "remote.origin.url").strip()
        )
    if with_code:
        if commit:
            diff = _git(
                directory, "diff", "--no-color", "--no-ext-diff", "--submodule=diff", "HEAD"
            )
            found[RL_WORKER_DIFF] = _cut_bytes(masked_lines(diff))
        found[RL_WORKER_PACKAGES] = _packages()
    return {key: value for key, value in found.items() if value}


def _directory() -> Path:
    """Return the directory of the program, else that of the process."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(program).resolve().parent if program else Path.cwd()


def _git(directory: Path, *arguments: str) -> str:
    """Return the output of git; empty without git, a repository or an answer in time."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(  # noqa: S603  # the user's own git
            ["git", "-C", os.fspath(directory), *arguments],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _cut_bytes(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= _MAX_DIFF_BYTES:
        return text
    kept = encoded[:_MAX_DIFF_BYTES].decode(errors="ignore")
    return f"{kept}\n[... {len(encoded) - _MAX_DIFF_BYTES} bytes cut]\n"


def _packages() -> list[str]:
    with IMPORTS.work():
        from importlib.metadata import distributions  # 1 MB that one worker of a role needs

    found = {
        f"{name}=={version}"
        for name, version in map(_name_and_version, distributions())
        if name  # of a broken installation
    }
    return sorted(found, key=str.lower)[:_MAX_PACKAGES]


def _name_and_version(one: "Distribution") -> tuple[str, str]:
    """Return both from the usual first lines: a whole page of metadata takes ten times as long."""
    head = _HEAD.match(one.read_text("METADATA") or "")
    return (head[1], head[2]) if head else (one.name, one.version)
