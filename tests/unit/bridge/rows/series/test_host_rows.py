"""Hosts in the run: each is there once, whichever of its workers reports it."""

from collections.abc import Mapping

from otel_rl.bridge.keys import tracker_key
from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Decoded,
    Device,
    Export,
    Measurements,
    Point,
    Series,
    SumPoint,
    Temporality,
    Worker,
)
from otel_rl.semconv.spec import Instrument
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

TRAINER = Worker("trainer", "t0", index=0, count=1)
GENERATOR = Worker("generator", "g0", index=0, count=1)


def cpu(worker: Worker, value: float, host: str, at_s: float = 1) -> Measurements:
    attributes = (("host.name", host),) if host else ()
    series = Series(worker, "system.cpu.utilization", "1", attributes)
    return Measurements(series, [T0 + int(at_s * S)], [value], [None])


def received(worker: Worker, value: float, host: str, at_s: float) -> SumPoint:
    attributes = (("host.name", host), ("network.io.direction", "receive"))
    series = Series(worker, "system.network.io", "By", attributes, None, Instrument.COUNTER, "s")
    return SumPoint(series, T0, T0 + int(at_s * S), value, Temporality.CUMULATIVE)


def values(aligner: Run, *points: Point, at_s: float = 1) -> Mapping[str, float]:
    for point in points:
        export = Export(point.series.worker, 0)
        aligner.add(Decoded([point], [export]), received_ns=T0 + int(at_s * S))
    rows = aligner.close(T0 + int((at_s + 100) * S), everything=True)
    return {
        key: value
        for row in rows
        for key, value in row.values.items()
        if not key.startswith("service/")
    }


def test_a_host_has_keys_of_its_own_and_none_of_a_role() -> None:
    found = values(Run(), cpu(TRAINER, 0.25, "node1"), cpu(GENERATOR, 0.75, "node2"))
    assert found == {
        "host/cpu/utilization": 0.5,
        "host/cpu/utilization/max": 0.75,
        "host/node1/cpu/utilization": 0.25,
        "host/node2/cpu/utilization": 0.75,
    }


def test_stolen_time_has_a_key_beside_the_time_in_use() -> None:
    attributes = (("cpu.mode", "steal"), ("host.name", "node1"))
    series = Series(TRAINER, "system.cpu.utilization", "1", attributes)
    stolen = Measurements(series, [T0 + S], [0.25], [None])
    found = values(Run(), cpu(TRAINER, 0.75, "node1"), stolen)
    assert found["host/node1/cpu/utilization"] == 0.75
    assert found["host/node1/cpu/utilization/steal"] == 0.25


def test_pressure_of_a_host_is_a_key_of_the_host() -> None:
    attributes = (("host.name", "node1"), ("rl.host.resource", "io"))
    waits = Measurements(Series(TRAINER, "rl.host.pressure", "1", attributes), [T0], [0.4], [None])
    found = values(Run(), cpu(TRAINER, 0.75, "node1"), waits)
    assert found["host/node1/pressure/io"] == 0.4
    assert found["host/pressure/io/max"] == 0.4


def test_a_host_that_two_workers_report_counts_once() -> None:
    points = [cpu(TRAINER, 0.5, "node1"), cpu(TRAINER, 0.5, "node1", at_s=2)]
    found = values(Run(), *points, cpu(GENERATOR, 0.9, "node1"), cpu(GENERATOR, 1, "node2"))
    assert found["host/node1/cpu/utilization"] == 0.5
    assert found["host/cpu/utilization"] == (0.5 + 0.5 + 1) / 3


def test_another_worker_goes_on_under_the_same_key() -> None:
    aligner = Run()
    first = values(aligner, received(TRAINER, 100, "node1", 1))
    second = values(aligner, received(GENERATOR, 40, "node1", 201), at_s=201)
    key = "host/node1/network/io/receive"
    assert (first[key], second[key]) == (100, 140)


def test_a_point_without_its_host_is_of_the_worker() -> None:
    found = values(Run(), cpu(TRAINER, 0.5, ""))
    assert found["trainer/system/cpu/utilization"] == 0.5
    assert not [key for key in found if key.startswith("host/")]


def test_hosts_are_no_gpus_and_have_a_bound_of_their_own() -> None:
    attributes = (("host.name", "node1"), ("hw.id", "GPU-a"), ("hw.name", "gpu0"))
    gpu = Measurements(
        Series(TRAINER, "hw.gpu.utilization", "1", attributes), [T0 + S], [1], [None]
    )
    aligner = Run(AlignSettings(max_devices=1))
    found = values(aligner, gpu, cpu(TRAINER, 0.5, "node1"), cpu(TRAINER, 0.7, "node2"))
    assert found["gpu/count"] == 1
    assert "host/node1/cpu/utilization" in found
    assert "host/node2/cpu/utilization" not in found
    assert found["host/cpu/utilization"] == 0.6
    assert set(aligner.devices) == {"gpu/node1/gpu0", "host/node1"}


def test_hosts_stay_known_over_a_restart() -> None:
    aligner = Run()
    values(aligner, cpu(TRAINER, 0.5, "node1"))
    again = revived(aligner)
    assert again.devices == {
        "host/node1": Device("host:node1", "node1", "", "", ("trainer/0",)),
    }
    assert again.devices["host/node1"].is_host
    found = values(again, cpu(TRAINER, 0.75, "node1", at_s=201), at_s=201)
    assert found["host/node1/cpu/utilization"] == 0.75


def test_hosts_whose_names_make_one_key_stay_apart() -> None:
    found = values(Run(), cpu(TRAINER, 0.25, "a:b"), cpu(TRAINER, 0.75, "a/b"))
    assert found["host/a/b/cpu/utilization"] == 0.25
    assert sorted(found.values()) == [0.25, 0.5, 0.75, 0.75]


def test_the_key_of_a_host_s_metric_has_no_role() -> None:
    attributes = (("host.name", "node1"), ("system.memory.state", "used"))
    assert tracker_key("trainer", "system.memory.usage", attributes) == "host/memory/usage/used"
    assert tracker_key("trainer", "system.memory.usage") == "trainer/system/memory/usage"
