"""Who is refused is told once a minute each, however many there are."""

from otel_rl.bridge.receive.senders import RefusedSenders

WHY = "The bearer token is not known."


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_sender_is_told_at_once_and_then_once_a_minute_with_a_count() -> None:
    clock = Clock()
    refused = RefusedSenders(clock)
    assert "A request from 10.0.0.1 refused" in refused.line("10.0.0.1", "/v1/metrics", WHY)
    for _ in range(4):
        clock.now_s += 10
        assert refused.line("10.0.0.1", "/v1/metrics", WHY) == ""
    clock.now_s += 20
    told = refused.line("10.0.0.1", "/v1/logs", WHY)
    assert "5 requests from 10.0.0.1 refused, the last to /v1/logs: The bearer token" in told


def test_senders_do_not_hide_each_other() -> None:
    refused = RefusedSenders(Clock())
    assert refused.line("10.0.0.1", "/v1/metrics", WHY)
    assert "10.0.0.2" in refused.line("10.0.0.2", "/v1/metrics", WHY)


def test_all_addresses_of_one_ipv6_host_are_one_sender() -> None:
    refused = RefusedSenders(Clock())
    assert "2001:db8::1" in refused.line("2001:db8::1", "/v1/metrics", WHY)
    assert refused.line("2001:db8::2", "/v1/metrics", WHY) == ""


def test_a_flood_of_addresses_fills_neither_log_nor_memory() -> None:
    clock = Clock()
    refused = RefusedSenders(clock)
    told = []
    for number in range(10_000):
        clock.now_s += 0.001
        told.append(refused.line(f"10.1.{number >> 8}.{number & 255}", "/v1/metrics", WHY))
    lines = [line for line in told if line]
    assert len(lines) < 300
    assert "further addresses" in lines[-1]

    clock.now_s += 61
    assert "further addresses" in refused.line("10.9.0.1", "/v1/metrics", WHY)
    clock.now_s += 121
    assert "10.9.0.2" in refused.line("10.9.0.2", "/v1/metrics", WHY)
