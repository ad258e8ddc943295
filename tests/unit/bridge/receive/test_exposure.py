"""A server that strangers reach says what they can do, until it asks who they are."""

import hashlib
import ipaddress
import logging
import re
import socket
from collections.abc import Callable

import pytest

from otel_rl.bridge.counters import Counters
from otel_rl.bridge.receive.grpc import GrpcServer
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.bridge.receive.tls import exposure
from otel_rl.bridge.receive.tokens import TeamSettings
from otel_rl.errors import Unauthenticated
from tests.support.otlp_requests import Journal, intake

ANYWHERE = ["0.0.0.0", "::", "10.0.0.7", "gpu-node-1", ""]
LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "localhost"]


def danger(host: str, *, token: bool = False, tls: bool = False, mutual: bool = False) -> str:
    return exposure(host, wants_token=token, has_tls=tls, is_mutual=mutual)


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_is_no_danger(host: str) -> None:
    assert danger(host) == ""


@pytest.mark.parametrize("host", ANYWHERE)
def test_who_asks_nobody_can_be_written_to_by_everybody(host: str) -> None:
    assert "can write runs" in danger(host)
    assert "can write runs" in danger(host, tls=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_a_name_of_loopback_is_no_danger_but_nobody_else_reaches_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = [(family, socket.SOCK_STREAM, 6, "", (address, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    told = danger("node-1")
    assert f"node-1 is {address} on this machine, which no other machine reaches" in told
    assert "reached from other machines" not in told
    (way_out,) = re.findall(r"Give (\S+) instead of node-1", told)
    assert not ipaddress.ip_address(way_out).is_loopback


def test_a_token_without_tls_can_be_read_on_the_way() -> None:
    assert "read the tokens" in danger("0.0.0.0", token=True)


def test_a_token_within_tls_and_a_certificate_are_no_danger() -> None:
    assert danger("0.0.0.0", token=True, tls=True) == ""
    assert danger("0.0.0.0", tls=True, mutual=True) == ""


@pytest.mark.parametrize("server", [HttpServer, GrpcServer])
def test_it_is_in_the_log(
    server: Callable[..., HttpServer | GrpcServer], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        server(intake(Journal(), Counters()), "0.0.0.0", 0).stop()
        assert "can write runs" in caplog.text
        caplog.clear()
        auth = (TeamSettings(name="x", experiments=("*",), sha256=("0" * 64,)),)
        server(intake(Journal(), Counters(), auth=auth), "0.0.0.0", 0).stop()
        assert "read the tokens" in caplog.text
        caplog.clear()
        server(intake(Journal(), Counters()), "127.0.0.1", 0).stop()
        assert caplog.text == ""


def test_a_token_that_only_reads_writes_nothing() -> None:
    digest = hashlib.sha256(b"reader-reader-reader").hexdigest()
    team = TeamSettings(name="x", experiments=("*",), sha256=("0" * 64,), read_sha256=(digest,))
    receiver = intake(Journal(), Counters(), auth=(team,))
    assert receiver.tokens.grant("Bearer reader-reader-reader") is not None
    with pytest.raises(Unauthenticated, match="may only read"):
        receiver.grant_to("host", "/v1/metrics", "Bearer reader-reader-reader")
