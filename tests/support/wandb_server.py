"""A W&B server on loopback, good enough for the real SDK 0.31: runs, resume, history, failures.

    with WandbServer() as server:
        os.environ |= server.environment()
        ...
        assert [row["_step"] for row in server.history(run_id)] == [0, 1, 2]

It keeps the lines of each file by their offset, as the real one does: a line that is sent again
overwrites. ``rewrites`` counts the lines that came back with other content, which is data loss.

A run in shared mode is one that a client with ``X-WANDB-USE-ASYNC-FILESTREAM`` has begun. It takes
what any such client appends, each line with a step of the server's, and keeps what it was told
first. Where such a client joins a run that is not shared, its lines overwrite the owner's first
ones, as on the real server (wandb/wandb#12269).
"""

import asyncio
import base64
import gzip
import json
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

API_KEY = "0123456789abcdef0123456789abcdef01234567"
ENTITY = "test-entity"
HISTORY = "wandb-history.jsonl"

_START_TIMEOUT_S = 60.0
_OPERATION = re.compile(r"^\s*(?:#[^\n]*\n\s*)*(?:mutation|query)\s+(\w+)", re.MULTILINE)

Json = Mapping[str, object]

_VIEWER: Json = {
    "id": "VXNlcg==",
    "entity": ENTITY,
    "username": ENTITY,
    "email": "",
    "flags": "{}",
    "teams": {"edges": []},
}


@dataclass
class Run:
    """What the server knows of one run."""

    name: str
    project: str
    entity: str = ENTITY
    display_name: str = ""
    group: str = ""
    job_type: str = ""
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    files: dict[str, dict[int, str]] = field(default_factory=dict)
    uploads: int = 0
    resumed: int = 0
    complete: bool | None = None
    exit_code: int | None = None
    stop_pressed: bool = False
    rewrites: int = 0
    shared: bool = False
    # A line keeps the step that its client gave it, as on the real server it seems not to.
    client_steps: bool = False
    # In shared mode: where each client's line of its own is.
    places: dict[tuple[str, str, int], int] = field(default_factory=dict)
    # What each client has said of the run, in shared mode.
    told: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return base64.b64encode(f"Run:v1:{self.name}:{self.project}".encode()).decode()

    def lines(self, file: str = HISTORY) -> list[str]:
        stored = self.files.get(file, {})
        return [stored[offset] for offset in sorted(stored)]

    def take(self, file: str, offset: int, content: list[str]) -> None:
        stored = self.files.setdefault(file, {})
        for place, line in enumerate(content, offset):
            if file == HISTORY and _row(stored.get(place, line)) != _row(line):
                self.rewrites += 1
            stored[place] = line

    def take_shared(self, client: str, file: str, offset: int, content: list[str]) -> None:
        stored = self.files.setdefault(file, {})
        for number, line in enumerate(content, offset):
            place = self.places.setdefault((client, file, number), len(stored))
            if file == HISTORY and not self.client_steps:
                line = json.dumps({**json.loads(line), "_step": place})
            stored[place] = line

    def merge(self, config: dict[str, object]) -> None:
        """In shared mode the first value of a key stands, but each client's metrics are known."""
        ours = self.config.setdefault("_wandb", {"value": {}})
        theirs = config.pop("_wandb", {"value": {}})
        assert isinstance(ours, dict)
        assert isinstance(theirs, dict)
        metrics = {json.dumps(m): m for side in (ours, theirs) for m in side["value"].get("m", [])}
        ours["value"] = {**theirs["value"], **ours["value"], "m": list(metrics.values())}
        self.config = {**config, **self.config}


def _row(line: str) -> dict[str, object]:
    """What the client gave. ``_runtime`` is the SDK's own and differs each time."""
    return {key: value for key, value in json.loads(line).items() if key != "_runtime"}


@dataclass
class _Failure:
    status: int
    until: float
    path: str
    only_rows: bool = False
    hits: int = 0
    rows: int = 0


def _rows_in(request: Request, body: bytes) -> int:
    """Return how many history rows a request has."""
    if not request.url.path.endswith("file_stream"):
        return 0
    if request.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    chunk = (json.loads(body).get("files") or {}).get(HISTORY)
    return 0 if chunk is None else len(chunk["content"])


def without_a_login(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Make the environment that of a user without a login, whose home is another directory."""
    for variable in [name for name in os.environ if name.startswith("WANDB_")]:
        patch.delenv(variable)
    patch.delenv("XDG_STATE_HOME", raising=False)
    patch.setenv("HOME", str(home))


class WandbServer:
    """Starts in a thread on a free port. All methods may be called from any thread.

    Args:
        features: What it says that it can do.
    """

    def __init__(self, features: Sequence[str] = ()) -> None:
        self._features = [{"name": name, "isEnabled": True} for name in features]
        # _lock guards everything below.
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._failure: _Failure | None = None
        self._stale_lines = 0
        self._slow_s = 0.0
        self._key = ""
        self._arriving: list[tuple[float, Callable[[], None]]] = []
        self._unknown: list[str] = []
        self._asked: Counter[str] = Counter()
        self._views: dict[str, dict[str, str]] = {}
        self._alerts: list[tuple[str, str, str]] = []
        self._headers: list[dict[str, str]] = []
        self._paths: list[str] = []
        self._uploads: dict[str, bytes] = {}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app(), access_log=False, log_config=None, timeout_graceful_shutdown=1
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="wandb-server", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            assert time.monotonic() < deadline, "the stand-in server did not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        self._server.should_exit = True
        self._thread.join(_START_TIMEOUT_S)
        self._socket.close()

    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {"WANDB_BASE_URL": self.base_url, "WANDB_API_KEY": API_KEY, "WANDB_MODE": "online"}

    def history(self, run_id: str) -> list[dict[str, float]]:
        """The rows of a run, in the order of their lines."""
        with self._lock:
            self._arrive()
            run = self._runs.get(run_id)
            return [json.loads(line) for line in run.lines()] if run else []

    def run(self, run_id: str) -> Run:
        """Everything about a run. Still growing while a client writes to it."""
        with self._lock:
            return self._runs[run_id]

    def run_ids(self) -> list[str]:
        """Of all runs, in the order in which they were made."""
        with self._lock:
            return list(self._runs)

    def alerts(self, run_id: str) -> list[tuple[str, str]]:
        """Title and text of each alert of a run."""
        with self._lock:
            return [(title, text) for run, title, text in self._alerts if run == run_id]

    def unknown_operations(self) -> list[str]:
        """GraphQL operations that the server has no answer for."""
        with self._lock:
            return list(self._unknown)

    def asked(self, operation: str) -> int:
        """How often a GraphQL operation was asked for."""
        with self._lock:
            return self._asked[operation]

    def headers(self) -> list[dict[str, str]]:
        """The headers of every request so far."""
        with self._lock:
            return list(self._headers)

    def paths(self) -> list[str]:
        """The path of every request so far."""
        with self._lock:
            return list(self._paths)

    @property
    def views(self) -> dict[str, dict[str, str]]:
        """Saved views by name, as GraphQL has them; to be changed as by a person."""
        with self._lock:
            return self._views

    def uploads(self, run_id: str) -> dict[str, bytes]:
        """The files of a run that were uploaded, by their names."""
        with self._lock:
            begin = f"{run_id}/"
            files = self._uploads.items()
            return {
                path.removeprefix(begin): body for path, body in files if path.startswith(begin)
            }

    def fail(self, status: int, *, seconds: float = float("inf"), path: str = "") -> None:
        """Answer requests whose path contains ``path`` with ``status``, or with 0, not at all."""
        with self._lock:
            self._failure = _Failure(status, time.monotonic() + seconds, path)

    def refuse_rows(self) -> None:
        """Answer requests with history rows with 500, and others as ever."""
        with self._lock:
            self._failure = _Failure(500, inf, "file_stream", only_rows=True)

    def heal(self) -> None:
        """End the failure, the lag and the slowness."""
        with self._lock:
            self._failure = None
            self._stale_lines = 0
            self._slow_s = 0.0

    def failed(self) -> int:
        """How many requests the present failure has hit."""
        with self._lock:
            return self._failure.hits if self._failure else 0

    def refused_rows(self) -> int:
        """How many rows the requests had that the present failure has hit, repeats included."""
        with self._lock:
            return self._failure.rows if self._failure else 0

    def lag(self, lines: int) -> None:
        """Answer as if the last so many history lines of each run had not come yet."""
        with self._lock:
            self._stale_lines = lines

    def slow(self, seconds: float) -> None:
        """Acknowledge the lines of clients in shared mode at once, and have them so much later."""
        with self._lock:
            self._slow_s = seconds

    def arrive(self) -> None:
        """Have the lines that ``slow`` holds back now, after those that came in between."""
        with self._lock:
            self._arriving = [(-inf, take) for _, take in self._arriving]
            self._arrive()

    def take_no_key_but(self, key: str) -> None:
        """Refuse requests that give another key."""
        with self._lock:
            self._key = key

    def press_stop(self, run_id: str) -> None:
        """As the button in the UI does."""
        with self._lock:
            self._runs[run_id].stop_pressed = True

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._runs.clear()
            self._unknown.clear()
            self._headers.clear()
            self._paths.clear()
            self._failure = None
            self._stale_lines = 0

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def inject(
            request: Request, call_next: Callable[[Request], asyncio.Future[Response]]
        ) -> Response:
            with self._lock:
                self._headers.append(dict(request.headers))
                self._paths.append(request.url.path)
                is_wrong = self._is_wrong(request.headers.get("authorization", ""))
            status = 401 if is_wrong else self._injected(request.url.path)
            while status == 0:
                await asyncio.sleep(0.05)
                status = self._injected(request.url.path)
            if status is not None and self._refuses(request, await request.body()):
                return Response(json.dumps({"error": "injected"}), status_code=status)
            return await call_next(request)

        @app.post("/graphql")
        async def graphql(request: Request) -> Json:
            body = json.loads(await request.body())
            match = _OPERATION.search(body["query"])
            is_shared = "x-wandb-use-async-filestream" in request.headers
            client = request.headers.get("x-wandb-client-id", "") if is_shared else ""
            with self._lock:
                self._arrive()
                self._asked[match[1] if match else "?"] += 1
                return self._answer(match[1] if match else "?", body.get("variables") or {}, client)

        @app.post("/files/{entity}/{project}/{name}/file_stream")
        async def file_stream(entity: str, project: str, name: str, request: Request) -> Json:
            raw = await request.body()
            if request.headers.get("content-encoding") == "gzip":
                raw = gzip.decompress(raw)
            client = request.headers.get("x-wandb-async-client-id", "")
            with self._lock:
                self._arrive()
                return self._take(self._runs[name], json.loads(raw), client)

        @app.put("/upload/{path:path}")
        async def upload(path: str, request: Request) -> Json:
            with self._lock:
                self._uploads[path] = await request.body()
            return {}

        @app.get("/healthz")
        async def healthz() -> Json:
            return {}

        return app

    def _is_wrong(self, authorization: str) -> bool:
        """Return whether a request gives a key that is not taken. Some give none."""
        right = base64.b64encode(f"api:{self._key}".encode()).decode()
        return bool(self._key and authorization) and authorization != f"Basic {right}"

    def _injected(self, path: str) -> int | None:
        with self._lock:
            failure = self._failure
            if failure is None or failure.path not in path or time.monotonic() > failure.until:
                return None
            failure.hits += 1
            return failure.status

    def _refuses(self, request: Request, body: bytes) -> bool:
        """Return whether the present failure hits a request, and count its rows."""
        rows = _rows_in(request, body)
        with self._lock:
            if self._failure is None:
                return True
            self._failure.rows += rows
            return rows > 0 or not self._failure.only_rows

    def _arrive(self) -> None:
        due = [item for item in self._arriving if item[0] <= time.monotonic()]
        self._arriving = [item for item in self._arriving if item not in due]
        for _, take in due:
            take()

    def _take(self, run: Run, stream: dict[str, object], client: str) -> Json:
        run.uploads += 1
        files = stream.get("files") or {}
        assert isinstance(files, dict)
        for name, chunk in files.items():
            if run.shared:
                take = partial(run.take_shared, client, name, chunk["offset"], chunk["content"])
                self._arriving.append((time.monotonic() + self._slow_s, take))
            else:
                run.take(name, 0 if client else chunk["offset"], chunk["content"])
            if name == "wandb-summary.json":
                run.summary.update(json.loads(chunk["content"][-1]))
        if stream.get("complete") is not None:
            run.complete = bool(stream["complete"])
            exit_code = stream.get("exitcode")
            run.exit_code = exit_code if isinstance(exit_code, int) else None
        self._arrive()
        return {"stopped": run.stop_pressed}

    def _answer(self, operation: str, variables: dict[str, str], client: str) -> Json:
        answers: dict[str, Callable[[dict[str, str]], Json]] = {
            "CreateRunFiles": self._create_run_files,
            "JoinedRun": self._joined_run,
            "JoinedRunRows": self._joined_run_rows,
            "NotifyScriptableRunAlert": self._alert,
            "RunLineCount": self._resume_status,
            "RunNotes": self._resume_status,
            "RunResumeStatus": self._resume_status,
            "RunSummary": self._resume_status,
            "RunStoppedStatus": self._stopped_status,
            "SavedView": self._saved_view,
            "UpsertView2": self._upsert_view,
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": self._features}},
            "ServerInfo": lambda _: {"serverInfo": {"cliVersionInfo": {"max_cli_version": "9.9"}}},
            "UpsertBucket": partial(self._upsert, client=client),
            "Viewer": lambda _: {"viewer": _VIEWER},
            "ArtifactType": lambda _: {"project": {"artifact": None}},
            "?": lambda _: {"viewer": _VIEWER},  # how an older SDK checks a key
        }
        if operation not in answers:
            self._unknown.append(operation)
            return {"data": None, "errors": [{"message": f"unknown operation {operation}"}]}
        return {"data": answers[operation](variables)}

    def _saved_view(self, variables: dict[str, str]) -> Json:
        view = self._views.get(variables["name"])
        edges = [] if view is None else [{"node": view}]
        return {"project": {"allViews": {"edges": edges}}}

    def _upsert_view(self, variables: dict[str, str]) -> Json:
        name = variables["name"]
        known = self._views.get(name)
        assert variables.get("id") == (known and known["id"]), "it would be another view"
        # The real server stores a spec in its own spelling.
        spec = json.dumps(json.loads(variables["spec"]), indent=1)
        self._views[name] = {**variables, "id": f"view-{name}", "spec": spec}
        return {"upsertView": {"view": {"id": f"view-{name}", "name": name}, "inserted": not known}}

    def _alert(self, variables: dict[str, str]) -> Json:
        alert = variables["runName"], variables["title"], variables["text"]
        with self._lock:
            self._alerts.append(alert)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _upsert(self, variables: dict[str, Any], *, client: str) -> Json:  # as GraphQL has them
        name = variables.get("name") or variables.get("id") or ""
        run = next((r for r in self._runs.values() if name in {r.name, r.id}), None)
        inserted = run is None
        if run is None:
            run = Run(name, variables.get("project") or "uncategorized")
            self._runs[name] = run
            run.shared = bool(client)
        if client:
            told = run.told.setdefault(client, {})
            told.update({field: value for field, value in variables.items() if value})
        if variables.get("config") and run.shared and client:
            run.merge(json.loads(variables["config"]))
        elif variables.get("config"):
            run.config = json.loads(variables["config"])
        run.display_name = variables.get("displayName") or run.display_name
        run.group = variables.get("groupName") or run.group
        run.job_type = variables.get("jobType") or run.job_type
        run.notes = variables.get("notes") or run.notes
        run.tags = variables.get("tags") or run.tags
        if variables.get("summaryMetrics"):
            run.summary = json.loads(variables["summaryMetrics"])
        return {"upsertBucket": {"bucket": _bucket(run, self._stale_lines), "inserted": inserted}}

    def _resume_status(self, variables: dict[str, str]) -> Json:
        run = self._runs.get(variables["name"])
        if run is None:
            return {"model": {"id": "x", "name": "", "entity": None, "bucket": None}}
        return {
            "model": {
                "id": "x",
                "name": run.project,
                "entity": {"id": "x", "name": run.entity},
                "bucket": _resume_bucket(run, self._stale_lines),
            }
        }

    def _joined_run(self, variables: dict[str, str]) -> Json:
        run = self._runs.get(variables["name"])
        if run is None or run.project != variables["project"]:
            return {"project": {"run": None}}
        keys = {"lastStep": max((json.loads(line)["_step"] for line in run.lines()), default=-1)}
        return {"project": {"run": {"config": json.dumps(run.config), "historyKeys": keys}}}

    def _joined_run_rows(self, variables: dict[str, str]) -> Json:
        spec = json.loads(variables["spec"])
        steps = range(spec["minStep"], spec["maxStep"] + 1)
        rows = [
            {key: row[key] for key in spec["keys"]}
            for row in map(json.loads, self._runs[variables["name"]].lines())
            if row["_step"] in steps and all(key in row for key in spec["keys"])
        ]
        assert spec["samples"] >= len(steps), "the real server would leave some out"
        return {"project": {"run": {"sampledHistory": [rows]}}}

    def _stopped_status(self, variables: dict[str, str]) -> Json:
        run = self._runs.get(variables["runId"])
        return {"project": {"run": {"stopped": bool(run and run.stop_pressed)}}}

    def _create_run_files(self, variables: dict[str, str]) -> Json:
        files = [
            {"name": name, "uploadUrl": f"{self.base_url}/upload/{variables['run']}/{name}"}
            for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}


def _bucket(run: Run, stale_lines: int) -> dict[str, object]:
    return {
        "id": run.id,
        "name": run.name,
        "displayName": run.display_name,
        "description": None,
        "config": json.dumps(run.config),
        "sweepName": None,
        "tags": run.tags,
        "notes": run.notes or None,
        "project": {
            "id": "x",
            "name": run.project,
            "entity": {"id": "x", "name": run.entity},
        },
        "historyLineCount": max(0, len(run.lines()) - stale_lines),
    }


def _resume_bucket(run: Run, stale_lines: int) -> Json:
    history = run.lines()
    history = history[: max(0, len(history) - stale_lines)]
    summary = run.summary
    if stale_lines:
        summary = json.loads(history[-1]) if history else {}
    wandb_config = run.config.get("_wandb")
    started = wandb_config["value"].get("t") if isinstance(wandb_config, dict) else None
    return {
        **_bucket(run, stale_lines),
        "summaryMetrics": json.dumps(summary),
        "logLineCount": len(run.lines("output.log")),
        "eventsLineCount": len(run.lines("wandb-events.jsonl")),
        "historyTail": json.dumps(history[-1:]),
        "eventsTail": "[]",
        # The client takes a run whose config lacks "t" for one that never started.
        "wandbConfig": json.dumps({"t": started} if started is not None else {}),
    }
