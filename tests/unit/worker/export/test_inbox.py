"""A request that was accepted is in a file; one that was not waits, and is not lost in silence."""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from errno import EMFILE
from pathlib import Path

import psutil
import pytest

from otel_rl.inbox import (
    HEAD,
    INBOX,
    BrokenSegment,
    InboxPlace,
    Record,
    bytes_in,
    record,
    records,
    segments,
)
from otel_rl.signals import Signal
from otel_rl.worker.export import inbox, inbox_bridge
from otel_rl.worker.export.inbox import InboxTransport, with_inbox
from otel_rl.worker.export.transport import Outcome
from otel_rl.worker.settings import Settings, read_settings

ALL = 1 << 30


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    inbox.forget()


def transport(run: Path, signal: Signal = Signal.METRICS) -> InboxTransport:
    return InboxTransport(signal, InboxPlace(run, has_bridge=False))


def written(run: Path) -> list[tuple[Signal, bytes]]:
    return [
        (one.signal, one.body)
        for paths in segments(run / INBOX).values()
        for path in paths
        for one in records(path, 0, ALL)
    ]


def test_requests_of_all_signals_are_in_one_file_in_the_order_of_sending(run: Path) -> None:
    sent = [(Signal.LOGS, b"begin"), (Signal.METRICS, b"points"), (Signal.LOGS, b"end")]
    transports = {signal: transport(run, signal) for signal in Signal}
    for signal, body in sent:
        assert transports[signal].send(body).outcome is Outcome.ACCEPTED
    for one in transports.values():
        one.close()
    assert written(run) == sent
    assert [path.suffix for path in (run / INBOX).iterdir()] == [".otlp"]


def test_a_segment_is_followed_by_another_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "SEGMENT_BYTES", 100)
    one = transport(run)
    bodies = [bytes([n]) * 40 for n in range(9)]
    for body in bodies:
        one.send(body)
    one.close()
    (paths,) = segments(run / INBOX).values()
    assert len(paths) > 2
    assert [body for _, body in written(run)] == bodies


def test_a_full_inbox_refuses_until_a_bridge_has_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_MAX_BYTES", 1000)
    monkeypatch.setattr(inbox, "_LOOK_S", 0.0)
    one = transport(run)
    assert one.send(b"x" * 600).outcome is Outcome.ACCEPTED
    refused = one.send(b"x" * 600)
    assert refused.outcome is Outcome.RETRY
    assert "is full" in refused.message
    assert bytes_in(run / INBOX) < 1000
    (paths,) = segments(run / INBOX).values()
    os.truncate(paths[0], 0)  # as if it were read, and removed
    assert one.send(b"x" * 600).outcome is Outcome.ACCEPTED
    one.close()


def test_a_share_of_a_nearly_full_disk_is_the_bound(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_DISK_SHARE", 1e-12)
    one = transport(run)
    assert one.send(b"x").outcome is Outcome.RETRY
    one.close()


def test_a_request_is_written_once_whatever_becomes_of_the_bridge(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(EMFILE, "Too many open files")

    class Stream:
        def write(self, _: str) -> None:
            raise RuntimeError("a program's own stream")

    monkeypatch.setattr(inbox_bridge, "is_held", fails)
    monkeypatch.setattr(inbox_bridge, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(inbox_bridge, "_LOOK_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Stream())
    one = InboxTransport(Signal.METRICS, InboxPlace(run, has_bridge=True))
    bodies = [b"%d" % number for number in range(5)]
    assert {one.send(body).outcome for body in bodies} == {Outcome.ACCEPTED}
    one.close()
    assert written(run) == [(Signal.METRICS, body) for body in bodies]


def test_after_the_removal_of_its_directory_a_worker_begins_another_file(run: Path) -> None:
    one = transport(run)
    one.send(b"lost")
    shutil.rmtree(run)
    assert one.send(b"kept").outcome is Outcome.ACCEPTED
    one.close()
    assert written(run) == [(Signal.METRICS, b"kept")]


def test_what_cannot_be_written_waits_and_tells_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one = transport(tmp_path / "file" / "run")
    reply = one.send(b"x")
    assert (reply.outcome, reply.unreachable) == (Outcome.RETRY, True)
    assert str(tmp_path / "file") in reply.message
    inbox.forget()


def test_after_the_end_of_the_process_nothing_begins(run: Path) -> None:
    one = transport(run)
    one.send(b"in time")
    inbox.end()
    assert one.send(b"late").outcome is Outcome.RETRY
    assert [path.suffix for path in (run / INBOX).iterdir()] == [".otlp"]


def test_a_worker_that_is_named_later_goes_on_in_the_inbox_of_its_run(run: Path) -> None:
    place = InboxPlace(run, has_bridge=False)
    one = transport(run)
    one.send(b"guessed")
    inbox.move(place, "named")
    one.send(b"named")
    other = transport(run, Signal.LOGS)  # opened after it, by the settings of the beginning
    other.send(b"as well")
    one.close()
    other.close()
    assert written(run) == [(Signal.METRICS, b"guessed")]
    assert [body for _, body in written(run.with_name("named"))] == [b"named", b"as well"]


GOOD = record(Signal.METRICS, b"first") + record(Signal.LOGS, b"second")


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_torn_last_record_is_none(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "segment"
    path.write_bytes(HEAD + GOOD[:cut])
    whole = [Record(Signal.METRICS, b"first", len(HEAD) + len(record(Signal.METRICS, b"first")))]
    assert [*records(path, 0, ALL)] == whole[: cut >= len(record(Signal.METRICS, b"first"))]


def test_records_are_read_on_from_the_end_of_any(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(HEAD + GOOD)
    first, second = records(path, 0, ALL)
    assert [*records(path, 0, 1)] == [first]
    assert [*records(path, first.end, 1)] == [second]
    assert [*records(path, second.end, ALL)] == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"other..." + content[len(HEAD) :],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[: len(HEAD) + 4] + b"\x07" + content[len(HEAD) + 5 :],
        lambda content: content[: len(HEAD)] + bytes(len(content)),
    ],
    ids=["head", "a bit of the body", "signal", "zeros"],
)
def test_damage_is_noticed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "segment"
    path.write_bytes(damage(HEAD + record(Signal.METRICS, b"request")))
    with pytest.raises(BrokenSegment):
        [*records(path, 0, ALL)]


def settings(port: int = 9, **environ: str) -> Settings:
    """Return settings without an endpoint, whose default one has a port."""
    read = read_settings(environ)
    return replace(read, metrics=replace(read.metrics, url=f"http://localhost:{port}/v1/metrics"))


def chosen(data: Path, given: Settings, *, on_several_hosts: bool = False) -> InboxPlace | None:
    environ = {"OTEL_RL_DATA": str(data)}
    return with_inbox(given, "run", environ, on_several_hosts=on_several_hosts).inbox


def test_a_program_without_an_endpoint_uses_an_inbox(tmp_path: Path) -> None:
    assert chosen(tmp_path, settings()) == InboxPlace(tmp_path / "run", has_bridge=True)


def test_what_answers_at_the_default_endpoint_is_used_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert chosen(tmp_path, settings(port)) is None
    assert f"goes to 127.0.0.1:{port}" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_signal_with_an_endpoint_of_its_own_keeps_it(tmp_path: Path) -> None:
    given = settings(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://jaeger:4318/v1/traces")
    found = with_inbox(given, "run", {"OTEL_RL_DATA": str(tmp_path)}, on_several_hosts=False)
    assert found.traces.inbox is None
    assert found.metrics.inbox == found.logs.inbox == InboxPlace(tmp_path / "run", has_bridge=True)


def test_on_several_hosts_no_bridge_starts_and_the_way_to_one_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = chosen(tmp_path, settings(), on_several_hosts=True)
    assert place == InboxPlace(tmp_path / "run", has_bridge=False)
    assert "otel-rl replay" in capsys.readouterr().err


def test_on_a_network_file_system_requests_stay_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_file_system", lambda _path: "nfs4")
    assert chosen(tmp_path, settings()) is None
    assert "network file system (nfs4)" in capsys.readouterr().err


def test_where_the_file_systems_are_not_told_the_inbox_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "no proc"))
    assert chosen(tmp_path, settings()) == InboxPlace(tmp_path / "run", has_bridge=True)
