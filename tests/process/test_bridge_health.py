"""The health of a bridge, as the image and ``otel-rl doctor`` ask for it, whatever it demands."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, TIMEOUT_S, clean_environment, otel_rl_here
from tests.support import plain_http
from tests.support.ports import free_ports
from tests.support.slow import slow_after
from tests.support.tls_files import tls_files

pytestmark = pytest.mark.process

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text().replace("\\\n", " ")
(PROBE, COMMAND) = map(
    json.loads, re.findall(r"^ *(?:HEALTHCHECK .*)?CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
)

TLS = "[tls]\ncert = '{files}/server.pem'\nkey = '{files}/server.key'\n"
CONFIGS = {
    "plain": "",
    "TLS": TLS,
    "client certificates": f"{TLS}client_ca = '{{files}}/ca.pem'\n",
    "tokens": "[[team]]\nname = 'a'\nexperiments = ['*']\nsha256 = ['" + "0" * 64 + "']\n",
}


@dataclass
class Bridge:
    """A bridge with the image's command; ``ports`` are those that it has for the image's."""

    directory: Path
    environment: Mapping[str, str]
    ports: Mapping[str, str]

    def here(self, words: list[str]) -> list[str]:
        """Return the words of a command with the ports of this bridge."""
        text = json.dumps(words)
        for of_image, port in self.ports.items():
            text = text.replace(f":{of_image}", f":{port}")
        return [*json.loads(text.replace("/var/lib/otel_rl/bridge", str(self.directory / "data")))]


@contextmanager
def running(directory: Path, config: str) -> Iterator[Bridge]:
    (directory / "bridge.toml").write_text(config.format(files=tls_files(directory)))
    environment = clean_environment(directory, OTEL_RL_BRIDGE__TRACKER__NAME="jsonl")
    ports = dict(zip(("4337", "4338", "4339"), map(str, free_ports(3)), strict=True))
    bridge = Bridge(directory, environment, ports)
    process = subprocess.Popen(
        [*OTEL_RL, *bridge.here(COMMAND), "--config", "bridge.toml"],
        cwd=directory,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert any("health on http://" in line for line in process.stderr)
        yield bridge
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("mode", slow_after(1, reversed(CONFIGS)))
def test_the_probe_of_the_image_and_the_doctor_know_a_bridge_in_every_mode(
    mode: str, tmp_path: Path
) -> None:
    with running(tmp_path, CONFIGS[mode]) as bridge:
        probe = subprocess.run(
            [sys.executable, *bridge.here(PROBE)[1:]], check=False, timeout=TIMEOUT_S
        )
        assert probe.returncode == 0

        options = [word for word in bridge.here(COMMAND)[1:] if "data" not in word]
        where = options[: options.index("--health")]
        for given in (options, where):
            done = otel_rl_here(
                *("doctor", "--config", "bridge.toml", "--data", "data", *given),
                cwd=tmp_path,
                env=bridge.environment,
            )
            listens = [line for line in done.out.splitlines() if " listen " in line]
            assert all(line.startswith("ok ") and "a bridge is on" in line for line in listens)
            assert len(listens) == len(given) // 2

        port = bridge.ports["4339"]
        answer = plain_http.post(f"http://127.0.0.1:{port}/v1/metrics", content=b"", timeout=60)
        assert answer.status_code == 404


def test_a_port_that_another_program_has_is_no_bridge(tmp_path: Path) -> None:
    """Nor is a bridge with another certificate."""
    with running(tmp_path, CONFIGS["client certificates"]) as bridge:
        other = tmp_path / "other.toml"
        other.write_text(
            CONFIGS["client certificates"]
            .format(files=tmp_path / "tls")
            .replace("/server.", "/stranger.")
        )
        address = f"0.0.0.0:{bridge.ports['4338']}"
        done = otel_rl_here(
            *("doctor", "--config", "other.toml", "--http", address),
            cwd=tmp_path,
            env=bridge.environment,
        )
        assert f"FAIL listen http: {address}: Address already in use" in done.out
        assert "--http HOST:PORT" in done.out
