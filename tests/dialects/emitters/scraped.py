"""Runs a program that serves Prometheus metrics, and has the real Collector scrape it.

    python -m tests.dialects.record FILE -- python -m tests.dialects.emitters.scraped PYTHON SCRIPT

The program gets its port as last argument, writes a line when it has measured everything, and ends
at the end of its input. ``SCRAPES_S`` is the time from its line to the end, ``INTERVAL_S`` that
between two scrapes: 22 and 5 for Ray Serve, whose scrapes are large.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.lab.programs import COLLECTOR
from tests.support.ports import free_ports

SCRAPES_S = float(os.environ.get("SCRAPES_S", "8"))
INTERVAL_S = int(os.environ.get("INTERVAL_S", "1"))

SETTINGS = """
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: engine
          scrape_interval: {interval_s}s
          static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
processors:
  filter:
    metrics:
      metric:
        - 'IsMatch(name, "^(python|process|scrape)_.*") or name == "up"'
        - 'IsMatch(name, "^ray_") and not IsMatch(name, "^ray_serve_")'
  resource:
    attributes:
      - {{key: rl.experiment.name, value: dialects, action: insert}}
      - {{key: rl.worker.role, value: generator, action: insert}}
exporters:
  otlp_http: {{endpoint: "{endpoint}"}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [prometheus], processors: [filter, resource], exporters: [otlp_http]}}
"""


def main(command: list[str]) -> int:
    """Run both. Returns the program's exit status."""
    (port,) = free_ports(1)
    endpoint = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = subprocess.Popen([*command, str(port)], **pipes, text=True)  # type: ignore[call-overload]  # two pipes
    program.stdout.readline()
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "collector.yaml"
        settings.write_text(SETTINGS.format(port=port, endpoint=endpoint, interval_s=INTERVAL_S))
        collector = subprocess.Popen([COLLECTOR.path, f"--config={settings}"])
        time.sleep(SCRAPES_S)
        collector.terminate()
        collector.wait()
    program.communicate()
    return int(program.returncode)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
