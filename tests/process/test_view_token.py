"""The link of ``otel-rl view`` for other machines."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.process.commands import OTEL_RL, clean_environment, otel_rl
from tests.support.slow import slow_after
from tests.support.view_runs import LookedAt, write_run

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("command", "listen"),
    slow_after(1, [("view", "--listen"), ("mcp", "--http")]),
    ids=["view", "mcp"],
)
def test_json_has_the_address_and_the_token_in_a_field_of_its_own(
    command: str, listen: str, tmp_path: Path
) -> None:
    write_run(tmp_path, LookedAt())
    with subprocess.Popen(
        [*OTEL_RL, command, "--data", str(tmp_path), listen, "0.0.0.0:0"],
        env=clean_environment(tmp_path, OTEL_RL_LOG_FORMAT="json"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            first = json.loads(process.stderr.readline())
            found = re.search(r"http://[^:]+:(\d+)/", first["message"])
            assert found is not None
            told = first if command == "view" else json.loads(process.stderr.readline())
            token = told["token"]
            assert token not in told["message"]
            # A GET of MCP's place is a stream without an end.
            place, method = ("api/runs", "GET") if command == "view" else ("mcp", "POST")
            for headers, is_known in ({}, False), ({"authorization": f"Bearer {token}"}, True):
                answer = httpx.request(
                    method, f"http://127.0.0.1:{found[1]}/{place}", headers=headers, timeout=60
                )
                assert (answer.status_code != 401) == is_known
        finally:
            process.terminate()
            process.wait(90)


@pytest.mark.parametrize("command", slow_after(1, ["run", "demo"]))
def test_json_of_a_run_has_no_token_as_who_has_it_may_also_send(
    command: str, tmp_path: Path
) -> None:
    key = ExperimentKey("grpo", "a")
    names = ["--experiment", key.experiment, "--trial", key.trial, "--tracker", "jsonl"]
    program = "import os; print(os.environ['OTEL_EXPORTER_OTLP_HEADERS'])"
    of = {"run": ["--", sys.executable, "-c", program], "demo": ["--steps", "2"]}
    environment = clean_environment(tmp_path, OTEL_RL_LOG_FORMAT="json")
    done = otel_rl(command, *names, *of[command], cwd=tmp_path, env=environment)
    assert done.status == 0, done.err
    lines = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    (page,) = (line["message"] for line in lines if "page of the run" in line["message"])
    place = f"#/run/{run_id(*key)}/overview"
    assert re.fullmatch(rf"page of the run: http://127\.0\.0\.1:\d+/{place}", page)
    assert not [line for line in lines if "token" in line]
    assert "token=" not in done.err
    if command == "run":
        assert done.out.rpartition("Bearer%20")[2].strip() not in done.err


def test_the_printed_link_has_the_token_that_opens_the_page(tmp_path: Path) -> None:
    """And who opens it is in the audit log, as with a bridge's page."""
    write_run(tmp_path, LookedAt())
    with subprocess.Popen(
        [*OTEL_RL, "view", str(tmp_path), "--listen", "0.0.0.0:0"],
        env=clean_environment(tmp_path, OTEL_RL_BRIDGE__AUDIT="true"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://[^:]+:(\d+)/\?token=(\S+)", process.stderr.readline())
            assert found is not None
            page = f"http://127.0.0.1:{found[1]}/api/runs"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(page)
            request = urllib.request.Request(page, headers={"authorization": f"Bearer {found[2]}"})
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
        finally:
            process.terminate()
            _, said = process.communicate(timeout=90)
    (line,) = (line for line in said.splitlines() if " otel_rl.audit: " in line)
    told = json.loads(line.partition(" otel_rl.audit: ")[2])
    assert (told["team"], told["route"], told["status"]) == ("own", "runs", 200)
