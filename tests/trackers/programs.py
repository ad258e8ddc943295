"""A tracker's real server as a process that tests start, kill and start again."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from tests.support import waiting
from tests.support.ports import free_ports

wait_until = partial(waiting.wait_until, timeout_s=240)


class TrackerServer:
    """A server on a port of loopback that stays its own. Used as a context manager.

    Args:
        directory: Of its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a writer needs to find it."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def own_environment(self) -> Mapping[str, str]:
        return {}

    def is_up(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *self.command()],
                cwd=self.directory,
                env={**os.environ, **self.own_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, f"{type(self).__name__} answers")

    def kill(self) -> None:
        """End it and its children with SIGKILL."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        log = self.directory / "server.log"
        assert self._process.poll() is None, log.read_text()[-3_000:]
        try:
            return self.is_up()
        except httpx.HTTPError:
            return False


class MlflowServer(TrackerServer):
    """MLflow's tracking server with an SQLite file."""

    def command(self) -> Sequence[str]:
        return [
            *("-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", self.database, "--workers", "1"),
            *("--artifacts-destination", str(self.directory / "artifacts")),
        ]

    @property
    def database(self) -> str:
        return f"sqlite:///{self.directory / 'mlflow.db'}"

    @property
    def environment(self) -> Mapping[str, str]:
        return {"MLFLOW_TRACKING_URI": self.url}

    def own_environment(self) -> Mapping[str, str]:
        return {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def is_up(self) -> bool:
        return httpx.get(f"{self.url}/health", timeout=60).is_success


class TrackioServer(TrackerServer):
    """Trackio's server, which `trackio show` starts, without a browser."""

    token = "a-token-of-the-tests"

    def command(self) -> Sequence[str]:
        code = (
            "import uvicorn, trackio.server as s;"
            " app, _ = s.build_starlette_app_only();"
            f" uvicorn.run(app, host='127.0.0.1', port={self.port}, log_level='warning')"
        )
        return ["-c", code]

    @property
    def environment(self) -> Mapping[str, str]:
        return {"TRACKIO_SERVER_URL": self.url, "TRACKIO_WRITE_TOKEN": self.token}

    def own_environment(self) -> Mapping[str, str]:
        return {
            "TRACKIO_DIR": str(self.directory / "trackio"),
            "TRACKIO_WRITE_TOKEN": self.token,
            "HF_HUB_OFFLINE": "1",
        }

    def is_up(self) -> bool:
        return httpx.get(f"{self.url}/version", timeout=60).is_success
