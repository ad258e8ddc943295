"""A real PostgreSQL server of a test's own, in a directory that is gone afterwards.

It needs the server's programs (Debian: ``apt-get install postgresql``), no service and no rights.
"""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
import pytest

from tests.support.ports import free_ports

MISSING = "PostgreSQL's initdb is not installed (Debian: apt-get install postgresql)"

_TIMEOUT_S = 60
_USER = "otel_rl"

_CONF = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
port = {port}
fsync = {fsync}
max_connections = 60
shared_buffers = 32MB
logging_collector = off
"""


def bin_directory() -> Path | None:
    """Where ``initdb`` and ``pg_ctl`` are, None if they are not installed."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed[-1].parent if installed else None


class PostgresServer:
    """A server that runs inside the context. Skips the test that asks where none is installed.

    With ``OTEL_RL_LAB=required`` the test fails there.

    Args:
        fsync: Whether it waits for the disk. A killed server loses nothing without, a power cut
            would.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        programs = bin_directory()
        if programs is None:
            if os.environ.get("OTEL_RL_LAB") == "required":
                pytest.fail(MISSING)
            pytest.skip(MISSING)
        self._programs = programs
        self._fsync = fsync
        self._names = itertools.count()
        # The server refuses to run as root.
        self._runs_as = _unprivileged()
        self._directory = Path(tempfile.mkdtemp(prefix="otel-rl-postgres-"))
        self.port = free_ports(1)[0]

    def __enter__(self) -> Self:
        try:
            if self._runs_as is not None:
                os.chown(self._directory, self._runs_as.pw_uid, self._runs_as.pw_gid)
            self._run("initdb", "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            conf = _CONF.format(port=self.port, fsync="on" if self._fsync else "off")
            with (self._data / "postgresql.conf").open("a") as file:
                file.write(conf)
            self.start()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = str(self._directory / "log")
        self._run("pg_ctl", "start", "-w", "-t", str(_TIMEOUT_S), "-l", log)

    def stop(self) -> None:
        """End it as ``kill -9`` would: the next start has to recover."""
        self._run("pg_ctl", "stop", "-w", "-m", "immediate")

    def new_url(self) -> str:
        """The address of an empty schema of its own."""
        name = f"journal_{os.getpid()}_{next(self._names)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self._url}?options={quote(f'-csearch_path={name}')}"

    def new_database(self, encoding: str) -> str:
        """The address of an empty database in an encoding."""
        name = f"journal_{os.getpid()}_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
        return f"{self._url.rpartition('/')[0]}/{name}"

    def execute(self, statement: str) -> Sequence[tuple[object, ...]]:
        """Run a statement as the server's owner."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def cut_connections(self) -> None:
        """End every connection but the one that asks for it, and wait until they have ended."""
        self.execute(
            f"SELECT pg_terminate_backend(pid, {_TIMEOUT_S * 1000}) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _url(self) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        who = self._runs_as
        done = subprocess.run(
            [self._programs / program, "-D", self._data, *arguments],
            cwd=self._directory,
            user=None if who is None else who.pw_uid,
            group=None if who is None else who.pw_gid,
            extra_groups=None if who is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would stay open as long as the server
            stderr=subprocess.DEVNULL,
            timeout=2 * _TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            log = self._directory / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"{program} {' '.join(arguments)} failed: {said}")


def _unprivileged() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
