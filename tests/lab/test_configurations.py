"""Every file of collector_config/ is taken by the real program, and keeps what it promises."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.programs import COLLECTOR, JAEGER
from tests.lab.running import CONFIGURATIONS
from tests.process.commands import clean_environment

FILES = {"agent": COLLECTOR, "gateway": COLLECTOR, "scale": COLLECTOR, "jaeger": JAEGER}
WITH_QUEUE = ["agent", "gateway"]

# Beside the gateway's; started by tests of their names, and by test_grafana.py.
OVERLAYS = ["sampling", "prometheus", "gen_ai", "teams"]

# Every setting that a component has of its own, under the word of the manifest's module.
KINDS = ("extensions", "receivers", "processors", "exporters")


def contents(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONFIGURATIONS / f"{name}.yaml").read_text())
    return loaded


def used(name: str) -> Iterator[str]:
    """The types of all components that a file defines: ``otlp_http`` of ``otlp_http/bridge``."""
    for kind in KINDS:
        yield from (component.partition("/")[0] for component in contents(name).get(kind, {}))


def exporters(name: str) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = contents(name)["exporters"]
    return found


def validated(name: str, directory: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [FILES[name].path, "validate", f"--config={CONFIGURATIONS / f'{name}.yaml'}"],
        env=clean_environment(directory) | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_no_file_is_forgotten() -> None:
    there = {path.stem for path in CONFIGURATIONS.glob("*.yaml")} - {"builder", *OVERLAYS}
    assert there == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_the_real_program_takes_the_file(name: str, tmp_path: Path) -> None:
    done = validated(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "deprecat" not in done.stdout + done.stderr


def test_the_real_program_would_refuse_a_wrong_setting(tmp_path: Path) -> None:
    done = validated("gateway", tmp_path, OTEL_RL_FSYNC="perhaps")
    assert done.returncode != 0
    assert "fsync" in done.stderr


def test_the_manifest_holds_nothing_that_no_file_uses() -> None:
    manifest = yaml.safe_load((CONFIGURATIONS / "builder.yaml").read_text())
    modules = [entry["gomod"].split()[0] for kind in KINDS for entry in manifest[kind]]
    # .../extension/healthcheckextension is of the type health_check.
    built = {re.sub(r".*/|(extension|receiver|processor|exporter)$", "", m) for m in modules}
    files = [name for name, program in FILES.items() if program is COLLECTOR] + OVERLAYS
    wanted = {component.replace("_", "") for name in files for component in used(name)}
    assert built == wanted


@pytest.mark.parametrize("name", FILES)
def test_nothing_answers_before_it_has_stored(name: str) -> None:
    assert "batch" not in set(used(name))


@pytest.mark.parametrize("name", [*WITH_QUEUE, "teams"])
def test_every_exporter_has_a_queue_on_disk_and_never_gives_up(name: str) -> None:
    for exporter, settings in exporters(name).items():
        stored = contents("gateway" if name in OVERLAYS else name)["extensions"]
        assert settings["sending_queue"]["storage"] in stored, exporter
        assert settings["retry_on_failure"]["max_elapsed_time"] == "0s", exporter


def test_a_team_is_sent_on_as_the_gateway_sends_and_every_port_asks_for_a_token() -> None:
    teams, gateway = contents("teams"), contents("gateway")
    assert teams["exporters"]["otlp_http/team-b"] == gateway["exporters"]["otlp_http/bridge"]
    exporters_of: dict[str, set[str]] = defaultdict(set)
    for pipeline in teams["service"]["pipelines"].values():
        (receiver,) = pipeline["receivers"]
        (_, names_team) = pipeline["processors"]
        (written,) = teams["processors"][names_team]["attributes"]
        team = names_team.partition("/")[2]
        assert written == {"key": "otel_rl.team", "value": team, "action": "upsert"}
        for protocol in teams["receivers"][receiver]["protocols"].values():
            assert protocol["auth"] == {"authenticator": f"bearertokenauth/{team}"}
        exporters_of[team].update(pipeline["exporters"])
    a, b = exporters_of.values()
    assert not a & b, "in a queue for both, one team could hold up the other"
    assert gateway["service"]["pipelines"].keys() <= teams["service"]["pipelines"].keys()


def test_the_router_answers_only_after_the_gateways() -> None:
    (router,) = exporters("scale").values()
    inner = router["protocol"]["otlp"]
    assert router["sending_queue"] == inner["sending_queue"] == {"enabled": False}


@pytest.mark.parametrize("name", ["agent", "gateway", "scale"])
def test_every_signal_is_carried_behind_the_memory_limiter(name: str) -> None:
    pipelines = contents(name)["service"]["pipelines"]
    assert {"metrics", "traces", "logs"} <= pipelines.keys()
    for pipeline in pipelines.values():
        assert pipeline["processors"][0] == "memory_limiter"


@pytest.mark.parametrize("name", FILES)
def test_whatever_listens_is_on_loopback_unless_told_otherwise(name: str) -> None:
    text = (CONFIGURATIONS / f"{name}.yaml").read_text()
    assert "0.0.0.0" not in text
    listening = re.findall(r"^ +endpoint: \$\{env:\w+:-(\d[^}]*)\}$", text, re.MULTILINE)
    assert len(listening) >= 3
    assert all(address.startswith("127.0.0.1:") for address in listening)


@pytest.mark.parametrize("name", FILES)
def test_every_variable_that_users_set_is_described(name: str) -> None:
    text = (CONFIGURATIONS / f"{name}.yaml").read_text()
    body = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    described = " ".join(re.findall(r"^#.*$", text, re.MULTILINE))
    for variable in set(re.findall(r"\$\{env:(OTEL_RL_\w+)", body)):
        in_docs = (CONFIGURATIONS.parent / "docs" / "deploy.md").read_text()
        assert variable in described or f"`{variable}`" in in_docs, variable
