"""GPUs in the run: each is one device, however many workers report it."""

from collections.abc import Mapping

import pytest

from otel_rl.bridge.keys import device_key, device_prefix, tracker_key
from otel_rl.bridge.otlp.device_attributes import at_host, labels_of, without_labels
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
from otel_rl.semconv import names
from otel_rl.semconv.spec import Instrument
from tests.support.kept import revived

S = 1_000_000_000
T0 = 1_700_000_000 * S

TRAINERS = [Worker("trainer", f"t{n}", index=n, count=4) for n in range(4)]
GENERATOR = Worker("generator", "g0", index=0, count=1)


def labels(uuid: str, name: str = "gpu0", host: str = "node1") -> dict[str, str]:
    return {"hw.id": uuid, "hw.name": name, "host.name": host, "hw.model": "H100", "hw.type": "gpu"}


def level(
    worker: Worker,
    value: float,
    device: Mapping[str, str],
    *,
    name: str = "hw.gpu.utilization",
    at_s: float = 1,
) -> Measurements:
    series = Series(worker, name, "1", tuple(sorted(device.items())))
    return Measurements(series, [T0 + int(at_s * S)], [value], [None])


def used(
    worker: Worker,
    value: float,
    device: Mapping[str, str],
    *,
    name: str = "hw.gpu.memory.usage",
    instrument: Instrument = Instrument.UP_DOWN_COUNTER,
    at_s: float = 1,
) -> SumPoint:
    unit, attributes = names.METRICS[name].unit, tuple(sorted(device.items()))
    series = Series(worker, name, unit, attributes, None, instrument, f"s{worker.instance}")
    return SumPoint(series, T0, T0 + int(at_s * S), value, Temporality.CUMULATIVE)


def aligner(**settings: int) -> Run:
    return Run(AlignSettings.model_validate(settings))


def values(aligner: Run, *points: Point, at_s: float = 1) -> dict[str, float]:
    """What the run shows of these, which come in one window."""
    for point in points:
        aligner.add(
            Decoded([point], [Export(point.series.worker, 0)]), received_ns=T0 + int(at_s * S)
        )
    rows = aligner.close(T0 + int((at_s + 100) * S), everything=True)
    return {
        key: value
        for row in rows
        for key, value in row.values.items()
        if not key.startswith("service/")
    }


def test_a_device_that_two_workers_report_counts_once() -> None:
    a, b = labels("GPU-a"), labels("GPU-b", "gpu1")
    found = values(
        aligner(),
        used(TRAINERS[0], 10.0, a),
        used(TRAINERS[1], 10.0, a),
        used(TRAINERS[1], 30.0, b),
    )
    assert found["gpu/trainer/memory/usage"] == 40.0
    assert found["gpu/memory/usage"] == 40.0
    assert found["gpu/node1/gpu0/memory/usage"] == 10.0
    assert found["gpu/count"] == found["gpu/trainer/count"] == 2


def test_a_device_of_two_roles_is_once_in_each_and_once_in_all() -> None:
    a = labels("GPU-a")
    found = values(aligner(), used(TRAINERS[0], 10.0, a), used(GENERATOR, 10.0, a))
    assert found["gpu/trainer/memory/usage"] == found["gpu/generator/memory/usage"] == 10.0
    assert found["gpu/memory/usage"] == 10.0
    assert (found["gpu/count"], found["gpu/generator/count"]) == (1, 1)


def test_shares_are_never_added_up() -> None:
    found = values(
        aligner(),
        level(TRAINERS[0], 0.5, labels("GPU-a")),
        level(TRAINERS[1], 0.5, labels("GPU-a")),
        level(TRAINERS[1], 1.0, labels("GPU-b", "gpu1")),
    )
    assert found["gpu/trainer/utilization"] == 0.75
    assert (found["gpu/trainer/utilization/min"], found["gpu/trainer/utilization/max"]) == (0.5, 1)
    assert (found["gpu/node1/gpu0/utilization"], found["gpu/node1/gpu1/utilization"]) == (0.5, 1)


def test_energy_of_a_shared_device_is_used_once() -> None:
    bench, a = aligner(), labels("GPU-a") | {"hw.type": "gpu"}
    found = values(
        bench,
        *(
            used(worker, joules, a, name="hw.energy", instrument=Instrument.COUNTER, at_s=at_s)
            for worker in TRAINERS[:3]
            for joules, at_s in ((0.0, 0.5), (700.0, 1.5))
        ),
        at_s=2,
    )
    assert found["gpu/trainer/energy"] == found["gpu/node1/gpu0/energy"] == 700.0


def test_the_memory_of_each_process_on_a_device_is_its_own() -> None:
    a, name = labels("GPU-a"), "rl.gpu.process.memory.usage"
    found = values(
        aligner(), used(TRAINERS[0], 10.0, a, name=name), used(GENERATOR, 30.0, a, name=name)
    )
    assert found["gpu/node1/gpu0/process/memory/usage"] == 40.0
    assert found["gpu/trainer/process/memory/usage"] == 10.0


def held(worker: Worker, phase: str, until_s: float, seconds: float) -> list[SumPoint]:
    """A turn of so many seconds within the first ``until_s``, as a worker counts it."""
    device = labels("GPU-a") | {"rl.gpu.owner": phase}
    return [
        used(
            worker,
            value,
            device,
            name="rl.gpu.owner.time",
            instrument=Instrument.COUNTER,
            at_s=at_s,
        )
        for value, at_s in ((0.0, 0.1), (seconds, until_s))
    ]


def test_phases_of_processes_that_take_turns_add_up_on_their_device() -> None:
    turns = held(TRAINERS[0], "train", 4, 2.0) + held(GENERATOR, "generate", 4, 1.0)
    found = values(aligner(), *turns, at_s=4)
    assert found["gpu/node1/gpu0/owner/time/train"] == 2.0
    assert found["gpu/owner/time/generate"] == 1.0
    assert found["gpu/generator/owner/time/generate"] == 1.0
    assert found["gpu/node1/gpu0/owner/idle"] == pytest.approx(0.25)
    assert found["gpu/node1/gpu0/owner/overlap"] == 0.0


def test_turns_that_overlap_are_more_than_all_of_the_time() -> None:
    turns = held(TRAINERS[0], "train", 4, 3.0) + held(GENERATOR, "generate", 4, 2.0)
    found = values(aligner(), *turns, at_s=4)
    assert found["gpu/node1/gpu0/owner/idle"] == 0.0
    assert found["gpu/node1/gpu0/owner/overlap"] == pytest.approx(0.25)


def test_when_one_of_two_falls_silent_the_other_speaks_for_the_device() -> None:
    bench, a = aligner(), labels("GPU-a")
    assert values(bench, used(TRAINERS[0], 10.0, a), used(TRAINERS[1], 10.0, a))["gpu/count"] == 1
    later = values(bench, used(TRAINERS[1], 20.0, a, at_s=21), at_s=21)
    assert later["gpu/trainer/memory/usage"] == 20.0


def test_a_worker_s_own_values_are_written_beside_those_of_its_role() -> None:
    found = values(
        aligner(),
        level(TRAINERS[0], 0.5, labels("GPU-a")),
        level(TRAINERS[1], 1.0, labels("GPU-b", "gpu1")),
    )
    assert found["workers/trainer/0/gpu/utilization"] == 0.5
    assert found["workers/trainer/1/gpu/utilization"] == 1.0


def test_the_run_knows_its_devices_and_who_reports_them() -> None:
    bench = aligner()
    values(
        bench,
        level(TRAINERS[1], 0.5, labels("GPU-a")),
        level(TRAINERS[0], 0.5, labels("GPU-a")),
        level(GENERATOR, 0.5, labels("GPU-b", host="node2")),
    )
    assert bench.devices == {
        "gpu/node1/gpu0": Device("GPU-a", "node1", "gpu0", "H100", ("trainer/1", "trainer/0")),
        "gpu/node2/gpu0": Device("GPU-b", "node2", "gpu0", "H100", ("generator/0",)),
    }


def test_a_device_is_one_even_if_containers_call_its_host_otherwise() -> None:
    found = values(
        aligner(),
        used(TRAINERS[0], 10.0, labels("GPU-a", host="pod-1")),
        used(TRAINERS[1], 10.0, labels("GPU-a", host="pod-2")),
    )
    assert found["gpu/memory/usage"] == 10.0
    assert "gpu/pod-2/gpu0/memory/usage" not in found


def test_two_devices_are_two_even_if_their_hosts_are_called_the_same() -> None:
    bench = aligner()
    found = values(
        bench,
        used(TRAINERS[0], 10.0, labels("GPU-a", host="pod")),
        used(TRAINERS[1], 20.0, labels("GPU-b", host="pod")),
    )
    assert found["gpu/memory/usage"] == 30.0
    assert found["gpu/pod/gpu0/memory/usage"] == 10.0
    assert found["gpu/pod/gpu0-GPU-b/memory/usage"] == 20.0


def test_devices_beyond_the_bound_are_in_the_values_of_all_only() -> None:
    found = values(
        aligner(max_devices=1),
        used(TRAINERS[0], 10.0, labels("GPU-a")),
        used(TRAINERS[0], 20.0, labels("GPU-b", "gpu1")),
    )
    assert found["gpu/memory/usage"] == 30.0
    assert "gpu/node1/gpu1/memory/usage" not in found


def test_a_restored_aligner_knows_its_devices() -> None:
    bench, a = aligner(), labels("GPU-a")
    values(bench, used(TRAINERS[0], 10.0, a), used(TRAINERS[1], 10.0, a))
    again: Run = revived(bench)
    assert again.devices == bench.devices
    found = values(
        again, used(TRAINERS[0], 20.0, a, at_s=21), used(TRAINERS[1], 20.0, a, at_s=21), at_s=21
    )
    assert found["gpu/memory/usage"] == found["gpu/node1/gpu0/memory/usage"] == 20.0


@pytest.mark.parametrize(
    ("name", "attributes", "key"),
    [
        ("hw.gpu.utilization", labels("GPU-a"), "gpu/trainer/utilization"),
        ("hw.power", labels("GPU-a"), "gpu/trainer/power"),
        ("hw.power", {"hw.id": "psu0", "hw.type": "cpu"}, "trainer/hw/power/psu0/cpu"),
        (
            "rl.gpu.clock.frequency",
            labels("GPU-a") | {"rl.gpu.clock.domain": "sm"},
            "gpu/trainer/clock/frequency/sm",
        ),
        (
            "hw.gpu.io",
            {"network.io.direction": "receive", "rl.gpu.link": "nvlink"},
            "gpu/trainer/io/receive/nvlink",
        ),
    ],
)
def test_keys_say_what_is_measured_and_not_on_which_device(
    name: str, attributes: dict[str, str], key: str
) -> None:
    assert tracker_key("trainer", name, attributes.items()) == key


def test_keys_of_one_device_begin_with_its_place() -> None:
    assert device_prefix("node1.example", "gpu0.mig1") == "gpu/node1.example/gpu0.mig1"
    assert device_prefix("", "gpu0") == "gpu/gpu0"
    assert device_key("gpu/node1/gpu0", "hw.power", (("hw.type", "gpu"),)) == "gpu/node1/gpu0/power"


def test_a_device_without_a_name_is_called_by_its_id() -> None:
    found = labels_of("hw.gpu.utilization", (("hw.id", "GPU-0123456789ab"),))
    assert found is not None
    assert found.name == "01234567"
    assert labels_of("hw.gpu.utilization", ()) is None
    assert labels_of("loss", (("hw.id", "GPU-a"),)) is None


def test_the_host_of_a_device_is_the_sender_s_unless_the_point_says_it() -> None:
    assert at_host((("hw.id", "a"),), "node1") == (("host.name", "node1"), ("hw.id", "a"))
    said = (("host.name", "other"), ("hw.id", "a"))
    assert at_host(said, "node1") == said
    assert at_host((("x", "y"),), "node1") == (("x", "y"),)
    assert without_labels("loss", said) == said
