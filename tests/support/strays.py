"""Finds processes by a mark in their environment, which every child inherits."""

import os
from pathlib import Path


def processes_with(variable: str, value: str) -> dict[int, str]:
    """Process id to command line of every process but this one whose environment has the mark."""
    mark = f"{variable}={value}".encode()
    found: dict[int, str] = {}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        pid = int(environ.parent.name)
        if pid == os.getpid():
            continue
        try:
            if mark in environ.read_bytes().split(b"\0"):
                command = (environ.parent / "cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone by now, or not ours
    return found
