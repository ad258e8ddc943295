"""What docs/operations.md says of backups, moves, upgrades and keys, done with real bridges."""

import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.run_id import run_id
from tests.faults.keeper import wait_for
from tests.lab.running import Bridge
from tests.lab.site import BRIDGE, history_of
from tests.process.commands import clean_environment, otel_rl, otel_rl_here
from tests.support import plain_http
from tests.support.docs_examples import blocks
from tests.support.otlp_requests import gauge, key_values, metrics_request, point
from tests.support.postgres import PostgresServer, bin_directory
from tests.support.wandb_server import API_KEY, WandbServer

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
RUN = ("runbook", "default")
WRITTEN_S = 120.0

# Pauses that are meant for a server far away, shortened for tests.
TRACKER = """
[tracker]
max_retry = 1.0

[tracker.options]
transmit_interval_s = 1
"""
NOT_COPIED = ("journal.db*", "lock")


def send(bridge: Bridge, steps: range) -> None:
    """One request for each step, so that none is in a batch of another."""
    for step in steps:
        loss = point(step / 4)
        loss.attributes.extend(key_values({"rl.loop.iteration": step}))
        resource = {"rl.experiment.name": RUN[0], "rl.worker.role": "trainer"}
        answer = plain_http.post(
            f"{bridge.url}/v1/metrics",
            content=metrics_request(gauge(loss), resource=resource).SerializeToString(),
            headers={"content-type": "application/x-protobuf"},
            timeout=90,
        )
        assert answer.status_code == 200


def steps(rows: Sequence[Mapping[str, float]]) -> list[int]:
    return [int(row["step"]) for row in rows if "trainer/loss" in row]


def written(bridge: Bridge) -> list[int]:
    """The steps that are in the run, in the order of its rows."""
    return steps(history_of(bridge.directory / "data" / f"{run_id(*RUN)}.jsonl"))


def wait_until_written(bridge: Bridge, wanted: range) -> None:
    wait_for(lambda: written(bridge) == [*wanted], WRITTEN_S)
    assert written(bridge) == [*wanted]


def back_up(bridge: Bridge, copy: Path) -> None:
    """As the page says, beside the bridge that writes."""
    (command,) = (block for block in blocks(PAGE, "sh") if ".backup(" in block)
    data = bridge.directory / "data"
    copy.mkdir(parents=True)
    command = command.replace("DIR/", f"{data}/").replace("COPY/", f"{copy}/")
    subprocess.run(
        ["/bin/sh", "-c", command.replace("python3", sys.executable)], check=True, timeout=60
    )
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(data, copy, ignore=ignored, dirs_exist_ok=True)


def test_a_backup_of_a_running_bridge_goes_on_with_the_run(tmp_path: Path) -> None:
    with Bridge(tmp_path / "old", BRIDGE) as old:
        send(old, range(5))
        wait_until_written(old, range(5))
        back_up(old, tmp_path / "new" / "data")
        old.kill()
    with Bridge(tmp_path / "new", BRIDGE) as new:
        send(new, range(5, 10))
        wait_until_written(new, range(10))


@pytest.mark.slow
def test_a_backup_that_is_older_than_its_run_writes_nothing_twice(tmp_path: Path) -> None:
    with Bridge(tmp_path / "old", BRIDGE) as old:
        send(old, range(5))
        wait_until_written(old, range(5))
        back_up(old, tmp_path / "new" / "data")
        send(old, range(5, 10))
        wait_until_written(old, range(10))
        old.kill()
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        newest = old.directory / "data"
        shutil.copytree(newest, tmp_path / "new" / "data", ignore=ignored, dirs_exist_ok=True)
    with Bridge(tmp_path / "new", BRIDGE) as new:
        # Fewer than the copy lacks: with as many, the run would be as long as the copy says.
        send(new, range(10, 13))
        assert wait_for(
            lambda: "from a backup. Give the trial another name" in new.said(), WRITTEN_S
        )
        assert written(new) == [*range(10)]


@dataclass
class Site:
    """Bridges on a database, one after another, that write the same files."""

    directory: Path
    postgres: PostgresServer

    def bridge(self, name: str, url: str) -> Bridge:
        files = self.directory / "files"
        files.mkdir(exist_ok=True)
        settings = f"""{BRIDGE}
[journal]
url = "{url}"
lease = 1.0

[tracker]
directory = "{files}"
"""
        return Bridge(self.directory / name, settings)

    def has(self, wanted: range) -> bool:
        return self.written() == [*wanted]

    def written(self) -> list[int]:
        return steps(history_of(self.directory / "files" / f"{run_id(*RUN)}.jsonl"))

    def back_up(self, url: str) -> None:
        self._run("pg_dump", URL=url)

    def restored(self) -> str:
        url = self.postgres.new_database("UTF8")
        self._run("pg_restore", NEW_URL=url)
        return url

    def _run(self, program: str, **variables: str) -> None:
        (command,) = (block for block in blocks(PAGE, "sh") if block.startswith(program))
        directory = bin_directory()
        assert directory is not None
        subprocess.run(
            ["/bin/sh", "-ec", command], check=True, timeout=120, cwd=self.directory,
            env={"PATH": f"{directory}:/usr/bin:/bin", **variables},
        )  # fmt: skip


@pytest.mark.slow
def test_a_restored_database_goes_on_with_the_run(tmp_path: Path, postgres: PostgresServer) -> None:
    site, url = Site(tmp_path, postgres), postgres.new_database("UTF8")
    with site.bridge("old", url) as old:
        send(old, range(5))
        assert wait_for(lambda: site.has(range(5)), WRITTEN_S), old.said()
        site.back_up(url)
        old.kill()
    with site.bridge("new", site.restored()) as new:
        send(new, range(5, 10))
        assert wait_for(lambda: site.has(range(10)), WRITTEN_S), new.said()


@pytest.mark.slow
def test_a_database_that_is_older_than_its_run_writes_nothing_twice(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    site, url = Site(tmp_path, postgres), postgres.new_database("UTF8")
    with site.bridge("old", url) as old:
        send(old, range(5))
        assert wait_for(lambda: site.has(range(5)), WRITTEN_S), old.said()
        site.back_up(url)
        send(old, range(5, 10))
        assert wait_for(lambda: site.has(range(10)), WRITTEN_S), old.said()
        old.kill()
    with site.bridge("new", site.restored()) as new:
        send(new, range(10, 13))
        assert wait_for(lambda: "Give the trial another name" in new.said(), WRITTEN_S), new.said()
        assert site.has(range(10))


@pytest.mark.slow
def test_a_stopped_bridge_goes_on_where_its_directory_is_moved(tmp_path: Path) -> None:
    with Bridge(tmp_path / "old", BRIDGE) as old:
        send(old, range(5))
        assert old.stop() == 0
    (tmp_path / "new").mkdir()
    shutil.move(tmp_path / "old" / "data", tmp_path / "new" / "data")
    with Bridge(tmp_path / "new", BRIDGE) as new:
        send(new, range(5, 10))
        wait_until_written(new, range(10))


def test_a_journal_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "data").close()
    journal = tmp_path / "data" / JOURNAL_FILE
    connection = sqlite3.connect(journal)
    connection.execute("UPDATE meta SET format = 99, version = '9.0.0'")
    connection.commit()
    connection.close()
    before = journal.read_bytes()
    listen = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    done = otel_rl("bridge", "--data", journal.parent, *listen, cwd=tmp_path)
    (told,) = blocks(PAGE, "text")[-1:]
    assert done.status == 2
    for part in told.strip().split("'.../journal.db'"):
        assert part in done.err
    assert journal.read_bytes() == before


def test_doctor_is_content_beside_a_bridge_that_is_well(tmp_path: Path) -> None:
    with Bridge(tmp_path / "bridge", BRIDGE) as bridge:
        http, grpc = map(str, bridge.ports)
        variables = {"OTEL_RL_BRIDGE__LISTEN__HTTP": http, "OTEL_RL_BRIDGE__LISTEN__GRPC": grpc}
        done = otel_rl_here(
            "doctor", "--tracker", "jsonl", "--data", bridge.directory / "data", cwd=tmp_path,
            env=clean_environment(tmp_path, **variables),
        )  # fmt: skip
    assert done.status == 0, done.out
    assert done.out.count("a bridge is on") == 2


def test_doctor_says_that_a_port_is_taken_by_something_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        variables = {"OTEL_RL_BRIDGE__LISTEN__HTTP": "0", "OTEL_RL_BRIDGE__LISTEN__GRPC": port}
        done = otel_rl_here(
            "doctor", "--tracker", "jsonl", cwd=tmp_path,
            env=clean_environment(tmp_path, **variables),
        )  # fmt: skip
    assert done.status == 1
    assert "FAIL listen grpc" in done.out


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server


class WandbBridge(Bridge):
    """A bridge that writes to W&B, with the key that stands in a file, if one does."""

    def __init__(self, directory: Path, server: WandbServer) -> None:
        self.netrc = directory / "netrc"
        super().__init__(directory, BRIDGE + TRACKER)
        self._command[-1] = "wandb"
        self._environment |= {"NETRC": str(self.netrc), "WANDB_BASE_URL": server.base_url}

    def give_key(self, server: WandbServer, key: str) -> None:
        host = server.base_url.partition("//")[2]
        self.netrc.write_text(f"machine {host}\n  login user\n  password {key}\n")


def has_all(server: WandbServer, wanted: range) -> bool:
    return sorted(steps(server.history(run_id(*RUN)))) == [*wanted]


def test_a_wrong_key_is_corrected_in_its_file_without_a_restart(
    tmp_path: Path, server: WandbServer
) -> None:
    bridge = WandbBridge(tmp_path, server)
    bridge.give_key(server, "0" * 40)
    server.take_no_key_but(API_KEY)
    with bridge:
        send(bridge, range(3))
        assert wait_for(lambda: "does not accept the rows" in bridge.said(), WRITTEN_S)
        assert server.history(run_id(*RUN)) == []
        bridge.give_key(server, API_KEY)
        assert wait_for(lambda: has_all(server, range(3)), WRITTEN_S), bridge.said()


@pytest.mark.slow
def test_a_run_that_began_without_a_key_is_online_after_a_restart_with_one(
    tmp_path: Path, server: WandbServer
) -> None:
    bridge = WandbBridge(tmp_path, server)
    with bridge:
        send(bridge, range(3))
        assert bridge.stop() == 0
        assert server.history(run_id(*RUN)) == []
        bridge.give_key(server, API_KEY)
        bridge.start()
        send(bridge, range(3, 6))
        assert wait_for(lambda: has_all(server, range(6)), WRITTEN_S), bridge.said()
