"""Some thousand of the requests of ``make fuzz``, and proof that the fuzzer would notice."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from otel_rl.bridge.counters import Counter
from otel_rl.bridge.receive.validate import Sanitizer, validate
from otel_rl.errors import MalformedRequest
from otel_rl.signals import Signal
from tests.fuzz.cases import make_case
from tests.fuzz.corpus import corpus
from tests.fuzz.fuzzer import T0, Fuzzer, Report
from tests.fuzz.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path, T0).running() as stack:
        yield stack


def explained(report: Report) -> str:
    return "\n".join(f"batch {failure.batch}: {failure.what}" for failure in report.failures)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [101, 102])
def test_no_request_harms_the_bridge_or_those_that_follow_it(stack: Stack, seed: int) -> None:
    report = Fuzzer(stack, seed).run(2000)
    assert not report.failures, explained(report)
    assert report.requests == 2000
    assert report.good == 10


def test_requests_of_every_kind_are_sent_every_way(stack: Stack) -> None:
    report = Fuzzer(stack, 103).run(1000)
    assert not report.failures, explained(report)
    kinds = {word for kind in report.kinds for word in kind.split()}
    assert kinds >= {
        *("sound", "random", "strange", "damaged", "mutated"),
        *("application/json", "application/x-protobuf"),
        *("identity", "gzip", "deflate"),
        *("metrics", "traces", "logs"),
    }
    ways = {answer.rpartition(" ")[0] for answer in report.answers}
    assert ways == {"in process", "http", "raw", "grpc"}
    taken = sum(
        n for answer, n in report.answers.items() if answer.split()[-1] in {"ok", "partial"}
    )
    assert taken > report.requests / 4, "nearly everything is refused at the door"
    for counter in (Counter.LOGS_ACCEPTED, Counter.LOGS_REFUSED, Counter.LOGS_IGNORED):
        assert stack.counters.value(counter) > 0, counter


def test_equal_seeds_make_equal_requests() -> None:
    def bodies(seed: int) -> list[bytes]:
        random, seeds = Random(seed), corpus(T0)
        return [make_case(random, seeds).body for _ in range(300)]

    assert bodies(1) == bodies(1)
    assert bodies(1) != bodies(2)


def test_every_seed_of_the_corpus_is_sound(stack: Stack) -> None:
    for seed in corpus(T0):
        request = seed.protobuf
        taken = validate(seed.signal, request, stack.limits, T0)
        assert taken.refused == {}


# What the fuzzer finds


def test_a_batch_that_cannot_be_decoded_is_a_failure(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fragile(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr("otel_rl.bridge.rows.run_batches.decode_parts", fragile)
    report = Fuzzer(stack, 1).run(100)
    assert any("the bridge counted" in failure.what for failure in report.failures)


def test_an_unforeseen_exception_at_the_door_is_a_failure_with_its_request(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Sanitizer.metrics

    def fragile(self: Sanitizer, request: ExportMetricsServiceRequest) -> object:
        if len(request.resource_metrics) > 1:
            raise KeyError("rl.experiment.name")
        return sound(self, request)

    monkeypatch.setattr(Sanitizer, "metrics", fragile)
    report = Fuzzer(stack, 1).run(200)
    failures = [failure for failure in report.failures if failure.case is not None]
    assert failures
    assert "KeyError" in failures[0].what or "503" in failures[0].what


def test_a_good_request_that_is_not_served_is_a_failure(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(signal: Signal, *_: object, **__: object) -> None:
        raise MalformedRequest(f"no {signal} today")

    monkeypatch.setattr("otel_rl.bridge.receive.pipeline.validate", refuse)
    report = Fuzzer(stack, 1).run(10)
    assert report.good == 0
    assert "the good request was answered" in report.failures[-1].what


@pytest.mark.slow
def test_a_bridge_that_keeps_what_it_is_sent_is_a_failure(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytearray] = []
    sound = Sanitizer.metrics

    def hoards(self: Sanitizer, request: ExportMetricsServiceRequest) -> object:
        kept.append(bytearray(b"x" * (1 << 20)))
        return sound(self, request)

    monkeypatch.setattr(Sanitizer, "metrics", hoards)
    report = Fuzzer(stack, 1).run(2000)
    assert report.requests < 2000
    assert "memory grew by" in report.failures[-1].what
