"""Starts, kills and ends the real programs, each on ports that it keeps over its restarts."""

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import yaml

from tests.faults.keeper import wait_for
from tests.lab.programs import COLLECTOR, JAEGER, PROMETHEUS
from tests.process.commands import OTEL_RL, clean_environment
from tests.support import plain_http
from tests.support.ports import free_ports

CONFIGURATIONS = Path(__file__).parents[2] / "collector_config"
DEPLOYED = yaml.safe_load((CONFIGURATIONS.parent / "deploy" / "prometheus.yaml").read_text())

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 180.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Span:
    """A span that Jaeger has.

    Attributes:
        trace: Its trace, in hexadecimal digits.
        id: In hexadecimal digits.
        name: Its name.
        links: Trace and id of the spans that it links to.
        attributes: Its own.
        resource: Those of its process.
    """

    trace: str
    id: str
    name: str
    links: tuple[tuple[str, str], ...]
    attributes: Mapping[str, str]
    resource: Mapping[str, str]


class Running:
    """A program that runs inside its context, unless a test ends it.

    Args:
        name: Of its log.
        command: That starts it.
        environment: Of the process.
        health: Answers 200 when it can be used.
        directory: Of its log; it works in there.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        health: str,
        directory: Path,
    ) -> None:
        self._name = name
        self._command = list(map(str, command))
        self._environment = {**environment, "PYTHONPATH": str(_ROOT)}
        self._health = health
        self._directory = directory
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where it works."""
        return self._directory

    def start(self, *, waits: bool = True) -> None:
        """Start it; unless told otherwise, wait until it is healthy."""
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if waits:
            self.wait()

    def wait(self) -> None:
        """Wait until it is healthy."""
        assert wait_for(self._is_healthy, _START_TIMEOUT_S), self._explained("is not healthy")

    def kill(self) -> None:
        """End it with no warning, as the kernel or a loss of power does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """End it in order. Returns its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self.kill()
        return status

    def said(self) -> str:
        """Everything that it has written, over all its lives."""
        return self._log.read_text(errors="replace")

    def _is_healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._explained("has ended")
        try:
            return plain_http.get(self._health, timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    def _explained(self, what: str) -> str:
        return f"{self._name} {what}:\n{self.said()[-4000:]}"


class Collector(Running):
    """The real Collector with one of the files that users get.

    Args:
        name: Of the file: ``agent``, ``gateway``, ``scale``.
        directory: For its queue and its log.
        settings: Its variables, but for ports and the queue's directory.
        overlays: Files that change some of its settings, one after the other.
    """

    def __init__(
        self, name: str, directory: Path, settings: Mapping[str, str], *overlays: str
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        http, grpc, health, self._metrics_port = free_ports(4)
        self.url = f"http://127.0.0.1:{http}"
        self.grpc_address = f"127.0.0.1:{grpc}"
        prefix = f"OTEL_RL_{'ROUTER' if name == 'scale' else name.upper()}"
        files = [CONFIGURATIONS / f"{name}.yaml"]
        for number, overlay in enumerate(overlays):
            files.append(directory / f"overlay-{number}.yaml")
            files[-1].write_text(overlay)
        super().__init__(
            name,
            [COLLECTOR.path, *(f"--config={file}" for file in files)],
            {
                **clean_environment(directory),
                f"{prefix}_HTTP": f"127.0.0.1:{http}",
                f"{prefix}_GRPC": f"127.0.0.1:{grpc}",
                f"{prefix}_HEALTH": f"127.0.0.1:{health}",
                f"{prefix}_METRICS_PORT": str(self._metrics_port),
                "OTEL_RL_QUEUE": str(directory / "queue"),
                **settings,
            },
            f"http://127.0.0.1:{health}/",
            directory,
        )

    def metric(self, name: str, **labels: str) -> float:
        """The sum of one of its own metrics over all label sets that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in self._metrics()
            if line.startswith(f"{name}{{") and all(label in line for label in wanted)
        )

    @property
    def metrics_address(self) -> str:
        """``HOST:PORT`` of its own metrics."""
        return f"127.0.0.1:{self._metrics_port}"

    def metric_names(self) -> frozenset[str]:
        """All of its own metrics that it shows by now."""
        return frozenset(line.split(" ")[2] for line in self._metrics() if line[:6] == "# TYPE")

    def _metrics(self) -> Sequence[str]:
        page = plain_http.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=60)
        return page.text.splitlines()


class Bridge(Running):
    """The real bridge.

    Args:
        directory: For its data, its runs and its log.
        settings: A TOML file.
        tracker: That it writes; JSON lines unless a test says otherwise.
    """

    def __init__(self, directory: Path, settings: str = "", tracker: str = "jsonl") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ports = http, grpc = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        file = directory / "bridge.toml"
        file.write_text(settings)
        super().__init__(
            "bridge",
            [
                *OTEL_RL, "bridge", "--config", file, "--data", directory / "data",
                "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}",
                "--tracker", tracker,
            ],
            clean_environment(directory),
            f"{self.url}/healthz",
            directory,
        )  # fmt: skip


class Jaeger(Running):
    """The real Jaeger, with the file that users get."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        http, grpc, health, query, query_grpc, metrics = free_ports(6)
        self.url = f"http://127.0.0.1:{http}"
        self.query_url = f"http://127.0.0.1:{query}"
        super().__init__(
            "jaeger",
            [JAEGER.path, f"--config={CONFIGURATIONS / 'jaeger.yaml'}"],
            {
                **clean_environment(directory),
                "OTEL_RL_JAEGER_HTTP": f"127.0.0.1:{http}",
                "OTEL_RL_JAEGER_GRPC": f"127.0.0.1:{grpc}",
                "OTEL_RL_JAEGER_HEALTH": f"127.0.0.1:{health}",
                "OTEL_RL_JAEGER_QUERY": f"127.0.0.1:{query}",
                "OTEL_RL_JAEGER_QUERY_GRPC": f"127.0.0.1:{query_grpc}",
                "OTEL_RL_JAEGER_METRICS_PORT": str(metrics),
                "OTEL_RL_JAEGER_DATA": str(directory / "traces"),
            },
            f"http://127.0.0.1:{health}/status",
            directory,
        )

    def trace(self, trace_id: str) -> Sequence[Span]:
        """The spans of a trace; none if it is unknown."""
        return self._spans(f"traces/{trace_id}", {})

    def find(self, service: str, name: str, limit: int = 10_000) -> Sequence[Span]:
        """All spans of the traces, of the last hour, in which a service has a span of a name."""
        now = datetime.now(UTC)
        hour = timedelta(hours=1)
        query = {
            "query.service_name": service,
            "query.operation_name": name,
            "query.start_time_min": (now - hour).isoformat().replace("+00:00", "Z"),
            "query.start_time_max": (now + hour).isoformat().replace("+00:00", "Z"),
            "query.num_traces": str(limit),
        }
        return self._spans("traces", query)

    def _spans(self, path: str, query: Mapping[str, str]) -> Sequence[Span]:
        answer = plain_http.get(f"{self.query_url}/api/v3/{path}", params=query, timeout=60)
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        return [
            Span(
                span["traceId"],
                span["spanId"],
                span["name"],
                tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
                _attributes(span),
                _attributes(resource_spans["resource"]),
            )
            for resource_spans in answer.json()["result"].get("resourceSpans", [])
            for scope_spans in resource_spans.get("scopeSpans", [])
            for span in scope_spans.get("spans", [])
        ]

    def services(self) -> list[str]:
        """The names of all services that have sent spans."""
        answer = plain_http.get(f"{self.query_url}/api/v3/services", timeout=60)
        answer.raise_for_status()
        return list(answer.json().get("services", []))


def _attributes(of: Mapping[str, Any]) -> Mapping[str, str]:
    """Attributes as text, whatever they are."""
    pairs = of.get("attributes", [])
    return {pair["key"]: str(next(iter(pair["value"].values()), "")) for pair in pairs}


class Prometheus(Running):
    """The real Prometheus, which takes OTLP as that of docker-compose.yml, and has rules.

    Args:
        directory: For its data and its log.
        rules: A file of rules.
    """

    def __init__(self, directory: Path, rules: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._rules = rules
        self._file = directory / "prometheus.yml"
        self.scrape()
        super().__init__(
            "prometheus",
            [
                PROMETHEUS.path,
                f"--config.file={self._file}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-otlp-receiver",
            ],
            clean_environment(directory),
            f"{self.url}/-/ready",
            directory,
        )

    def scrape(self, **addresses: str) -> None:
        """Write its file: who is asked each second, by the name of the job."""
        jobs = [
            {"job_name": f"otel_rl-{name}", "static_configs": [{"targets": [address]}]}
            for name, address in addresses.items()
        ]
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        content = {
            **{name: DEPLOYED[name] for name in ("otlp", "storage")},
            "global": every,
            "rule_files": [str(self._rules)],
            "scrape_configs": jobs,
        }
        self._file.write_text(json.dumps(content))  # which is YAML

    def firing(self) -> frozenset[str]:
        """The alerts that fire."""
        found = self._get("alerts")["alerts"]
        return frozenset(a["labels"]["alertname"] for a in found if a["state"] == "firing")

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """What an expression is now: series with labels and value."""
        found: Sequence[Mapping[str, Any]] = self._get(f"query?query={quote(expression)}")["result"]
        return found

    def metric_names(self) -> frozenset[str]:
        """All that it has."""
        return frozenset(self._get("label/__name__/values"))

    def _get(self, path: str) -> Any:
        answer = plain_http.get(f"{self.url}/api/v1/{path}", timeout=60)
        answer.raise_for_status()
        return answer.json()["data"]
