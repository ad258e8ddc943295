"""``otel-rl mcp`` through the client of the official package, over both transports."""

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from otel_rl.mcp.tools import MAX_CHARS, fitted
from otel_rl.records import ExperimentKey
from otel_rl.run_id import run_id
from tests.journals.small_run import ENDED, RANKS, STEPS, Life, begin, end, start_ns, step
from tests.process.commands import OTEL_RL, clean_environment
from tests.process.test_bridge_reload import write_tokens
from tests.support.view_runs import HOSTILE, LookedAt, S, write_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/diagnose.json").read_text())
SECRET = "hunter2-hunter2-hunter2"
TOOLS = {
    "runs",
    "diagnose",
    "why_step",
    "keys",
    "history",
    "compare_runs",
    "slowest_spans",
}

Talk = Callable[[ClientSession], Awaitable[None]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Journals: a run with a straggler, one without, a hostile one, and one with spans."""
    path = tmp_path_factory.mktemp("mcp")
    write_run(path / "slow", LookedAt(ExperimentKey("slow"), slow=2, steps=1_000, workers=3))
    write_run(path / "even", LookedAt(ExperimentKey("even"), steps=60))
    keys = [f"{number} {HOSTILE}" for number in range(200)]
    name = ExperimentKey(f"postgresql://me:{SECRET}@db/x {HOSTILE[:300]}")
    write_run(path / "hostile", LookedAt(name, keys=keys))
    (path / "spans").mkdir()
    life = Life(path / "spans")
    try:
        for rank in range(RANKS):
            life.take(begin(ENDED, rank), now_ns=start_ns(ENDED))
        for number in range(STEPS):
            now_ns = start_ns(ENDED) + (number + 1) * S
            life.take(
                *(one for rank in range(RANKS) for one in step(ENDED, rank, number)),
                now_ns=now_ns,
            )
        now_ns = start_ns(ENDED) + (STEPS + 3) * S
        life.take(*(end(ENDED, rank, now_ns) for rank in range(RANKS)), now_ns=now_ns)
        life.take(now_ns=now_ns + 60 * S)
    finally:
        life.journal.close()
    return path


def over_stdio(data: Path, talk: Talk) -> None:
    """Start the server as a client does, and talk to it."""
    command, *arguments = [*OTEL_RL, "mcp", "--data", str(data)]
    parameters = StdioServerParameters(
        command=command, args=arguments, env=clean_environment(data), cwd=data
    )

    async def main() -> None:
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            await talk(session)

    asyncio.run(main())


async def ask(session: ClientSession, tool: str, **arguments: object) -> Any:
    result = await session.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    assert len(content.text) <= MAX_CHARS
    assert json.loads(content.text) == result.structured_content
    return result.structured_content


async def refusal(session: ClientSession, tool: str, **arguments: object) -> str:
    result = await session.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.is_error
    return content.text


def test_every_tool_answers_a_real_client(data: Path) -> None:
    async def talk(session: ClientSession) -> None:
        listed = await session.list_tools()
        assert {tool.name for tool in listed.tools} == TOOLS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed.tools)
        runs = await ask(session, "runs")
        assert (runs["all"], runs["next_offset"], runs["faults"]) == (4, None, [])
        page = await ask(session, "runs", limit=1, search="e", offset=1)
        assert len(page["runs"]) == 1
        assert page["next_offset"] == 2

        found = await ask(session, "diagnose", run="slow")
        (cause,) = found["causes"]
        assert (found["verdict"], cause["kind"], cause["worker"]) == (
            "cause",
            "straggler",
            "trainer/2",
        )
        assert cause["amount"]["ratio"] == pytest.approx(4, abs=0.5)
        assert "trainer" in cause["compared_with"]
        assert "trainer/2" in cause["next"]

        why = await ask(session, "why_step", run="slow", step=400)
        assert why["time"]["worker"] == "trainer/2"
        assert why["longest"][0]["worker"] == "trainer/2"
        assert why["critical_path"] is None  # this run has no spans any more

        keys = await ask(session, "keys", run="slow", search="loss")
        assert [one["key"] for one in keys["keys"]] == ["trainer/loss"]

        series = await ask(session, "history", run="slow", key="trainer/loss", points=50)
        assert series["points"] == 1_000
        assert series["shown"] <= 50
        assert series["values"][0] == [1, 1]  # the extreme stays
        part = await ask(
            session, "history", run="slow", key="trainer/loss", first_step=10, last_step=12
        )
        assert [at for at, _ in part["values"]] == [10, 11, 12]
        rest = await ask(session, "history", run="slow", key="trainer/loss", first_step=999)
        assert [at for at, _ in rest["values"]] == [999, 1000]

        both = await ask(session, "compare_runs", run="slow", other="even")
        differs = {one["name"]: one for one in both["measures"]}
        longer = differs["time_per_step"]
        assert longer["is_sure"]
        assert longer["before"] / longer["after"] == pytest.approx(4, abs=0.5)

        spans = await ask(session, "slowest_spans", run="ended", limit=3)
        assert len(spans["spans"]) == 3
        took = [one["seconds"] for one in spans["spans"]]
        assert took == sorted(took, reverse=True)
        slow = await ask(session, "slowest_spans", run="slow", limit=1)
        (phase,) = slow["phases_of_the_whole_run"]
        assert (phase["worker"], phase["phase"]) == ("trainer/2", "train")
        why = await ask(session, "why_step", run="ended", step=STEPS - 1)
        assert why["critical_path"]

    over_stdio(data, talk)


def test_an_agent_is_told_what_the_command_tells_and_the_schema_promises(data: Path) -> None:
    said = subprocess.run(
        [*OTEL_RL, "diagnose", "slow", "--json", "--data", str(data)],
        env=clean_environment(data),
        stdout=subprocess.PIPE,
        check=True,
    )

    async def talk(session: ClientSession) -> None:
        found = await ask(session, "diagnose", run="slow")
        jsonschema.validate(found, SCHEMA)
        assert found == json.loads(fitted(json.loads(said.stdout)))

    over_stdio(data, talk)


@pytest.mark.slow
def test_mistakes_are_told_with_a_way_out(data: Path) -> None:
    async def talk(session: ClientSession) -> None:
        assert "There are: " in await refusal(session, "diagnose", run="none")
        words = await refusal(session, "history", run="slow", key="loss")
        assert "Similar ones: trainer/loss" in words
        assert "go to 1000" in await refusal(session, "why_step", run="slow", step=5_000)
        assert "Both names" in await refusal(session, "compare_runs", run="even", other="even")
        words = await refusal(session, "history", run="slow", key="trainer/loss", first_step=2000)
        assert "go to 1000" in words
        words = await refusal(session, "slowest_spans", run="slow", worker="trainer/22")
        assert "no worker 'trainer/22'. Similar ones: trainer/2" in words
        await refusal(session, "runs", limit=1_000_000)

    over_stdio(data, talk)


@pytest.mark.slow
def test_a_hostile_run_is_bounded_and_gives_no_secret(data: Path) -> None:
    async def talk(session: ClientSession) -> None:
        runs = await ask(session, "runs")
        run = next(one for one in runs["runs"] if "postgres" in one["experiment"])
        for found in (
            runs,
            await ask(session, "keys", run=run["id"], limit=100),
            await ask(session, "diagnose", run=run["id"]),
            await ask(session, "slowest_spans", run=run["id"]),
            await ask(session, "compare_runs", run=run["id"], other="slow", limit=100),
        ):
            told = json.dumps(found, ensure_ascii=False)
            assert SECRET not in told
            assert "\u202e" not in told

    over_stdio(data, talk)


@contextmanager
def served(
    data: Path, *arguments: str, said: list[str] | None = None, **environment: str
) -> Iterator[tuple[str, str]]:
    """Run ``otel-rl mcp --http``; yields its address and its token.

    Args:
        said: Gets the lines of its log once it has ended.
    """
    with subprocess.Popen(
        [*OTEL_RL, "mcp", "--data", str(data), *arguments],
        env={**clean_environment(data), **environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"(http://\S+)", process.stderr.readline())
            assert found is not None
            token = ""
            if "127.0.0.1" not in arguments[-1]:
                token = process.stderr.readline().split()[-1]
            yield found[1], token
        finally:
            process.terminate()
            process.wait(90)
            if said is not None and process.stderr is not None:
                said += process.stderr.readlines()


@asynccontextmanager
async def over_http(
    url: str, headers: dict[str, str] | None = None
) -> AsyncIterator[ClientSession]:
    client = httpx2.AsyncClient(headers=headers or {}, timeout=60)
    async with (
        client,
        streamable_http_client(url, http_client=client) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        yield session


def test_http_answers_on_loopback_and_not_to_another_name(data: Path) -> None:
    async def main(url: str) -> None:
        async with over_http(url) as session:
            assert (await ask(session, "runs"))["all"] == 4
        async with httpx2.AsyncClient() as client:
            answer = await client.post(url, json={}, headers={"host": "evil.example"})
            assert answer.status_code == 403
            answer = await client.post(url, json={}, headers={"origin": "http://evil.example"})
            assert answer.status_code == 403

    with served(data, "--http", "127.0.0.1:0") as (url, _):
        asyncio.run(main(url))


@pytest.mark.slow
def test_http_for_other_machines_needs_the_token(data: Path) -> None:
    async def main(url: str, token: str) -> None:
        async with httpx2.AsyncClient() as client:
            assert (await client.post(url, json={})).status_code == 401
        async with over_http(url, {"authorization": f"Bearer {token}"}) as session:
            assert (await ask(session, "runs"))["all"] == 4

    with served(data, "--http", "0.0.0.0:0") as (url, token):
        asyncio.run(main(re.sub(r"//[^:]+:", "//127.0.0.1:", url), token))


@pytest.mark.slow
def test_a_token_of_a_team_shows_its_runs_only_until_it_is_replaced(
    data: Path, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "tokens", "a-token-that-nobody-guesses")
    (tmp_path / "otel_rl.toml").write_text(
        'audit = true\n[[team]]\nname = "team"\nexperiments = ["even"]\n'
        f'file = "{tmp_path}/tokens"\n'
    )

    async def main(url: str) -> None:
        headers = {"authorization": "Bearer a-token-that-nobody-guesses"}
        async with over_http(url, headers) as session:
            runs = await ask(session, "runs")
            assert [one["experiment"] for one in runs["runs"]] == ["even"]
            words = await refusal(session, "diagnose", run="slow")
            assert words.endswith("There are: even/default.")
            rest = {"step": 1, "key": "trainer/loss"}
            for tool in (await session.list_tools()).tools:
                wanted = {name for name in tool.input_schema["properties"] if name in rest}
                named = {"run": "slow"} if tool.name != "runs" else {"search": "slow"}
                if tool.name == "compare_runs":
                    named = {"run": "even", "other": "slow"}
                given = {**named, **{name: rest[name] for name in wanted}}
                if tool.name == "runs":
                    assert (await ask(session, tool.name, **given))["runs"] == []
                else:
                    words = await refusal(session, tool.name, **given)
                    assert "There is no run 'slow'" in words, tool.name
            words = await refusal(session, "why_step", run="even", step=1_000_000)
            assert "There are no steps" in words
        write_tokens(tmp_path / "tokens", "another-that-nobody-guesses")

        def status(token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            return httpx2.post(url, json={}, headers=headers, timeout=60).status_code

        new, old = "another-that-nobody-guesses", "a-token-that-nobody-guesses"
        wait_until(lambda: status(old) == 401, "the old token stops", timeout_s=120)
        assert status(new) != 401

    said: list[str] = []
    config = f"{tmp_path}/otel_rl.toml"
    with served(data, "--config", config, "--http", "127.0.0.1:0", said=said) as (url, _):
        asyncio.run(main(url))
    told = [json.loads(line.partition(": ")[2]) for line in said if " otel_rl.audit: " in line]
    even = run_id("even", "default")
    assert [(one["team"], one["route"], one["run_id"], one["status"]) for one in told] == [
        ("team", "mcp/runs", "", 200),
        ("team", "mcp/diagnose", "slow", 404),
        ("team", "mcp/why_step", "slow", 404),
        ("team", "mcp/keys", "slow", 404),
        ("team", "mcp/history", "slow", 404),
        ("team", "mcp/compare_runs", even, 404),
        ("team", "mcp/compare_runs", "slow", 404),
        ("team", "mcp/slowest_spans", "slow", 404),
        ("team", "mcp/why_step", even, 400),
    ]
