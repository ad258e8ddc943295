"""Where the time of real learners and collectors goes: each wait apart, nothing twice, all of it.

Bounds come from the processes' own monotonic clock, which they share: what a process knows to have
waited is no more than what is reported, and what it knows to have spent elsewhere is not in it. So
no bound depends on how busy the machine is.
"""

import json
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from tests.process.commands import OPEN_FOR_LONG, clean_environment, jsonl_rows, otel_rl
from tests.support.otlp_sink import Sink, measurements, pairs, serve, sums

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

EPSILON_S = 1e-6
"""Of adding a dozen floats."""

# A learner of any number of ranks, as it would be written: the same code on one device and on many.
LEARNER = """
import json, multiprocessing, os, sys, threading
from time import monotonic_ns, sleep
import otel_rl

STEPS = range(1, 4)
ONLY_ON_SEVERAL_DEVICES = ("rank_barrier", "param_sync")


class Clock:
    '''What this process knows of its own time, by step and phase, in ns.'''

    def __init__(self):
        self.spent = {}

    def busy(self, step, phase):
        '''Spend some time in a phase. The clock is read within it: a lower bound.'''
        with otel_rl.phase(phase):
            begun = monotonic_ns()
            sleep(0.01)
            self.note(step, phase, monotonic_ns() - begun)

    def note(self, step, phase, ns):
        of_step = self.spent.setdefault(step, {})
        of_step[phase] = of_step.get(phase, 0) + max(0, ns)


def collect(asked, batches):
    '''A collector that is late: it begins when the learner waits, and says how long it took.'''
    while asked.get() is not None:
        begun = monotonic_ns()
        sleep(0.05)
        batches.put(monotonic_ns() - begun)


def prefetch(wanted, held, ready):
    '''Packs a batch and copies it to the device whenever one is wanted.'''
    while wanted.get() is not None:
        begun = monotonic_ns()
        sleep(0.05)
        held.put(monotonic_ns() - begun)
        ready.set()


class Ranks:
    '''What ranks do together. Says how long this rank at least had to wait.'''

    def __init__(self, rank, world, barrier, arrivals):
        self.rank, self.world, self.barrier, self.arrivals = rank, world, barrier, arrivals

    def wait(self, clock, step):
        if self.world == 1:
            return
        with otel_rl.phase("rank_barrier"):
            self.arrivals[self.rank] = arrived = monotonic_ns()
            self.barrier.wait()
            latest = max(self.arrivals)
        clock.note(step, "rank_barrier", latest - arrived)

    def average(self, clock, step):
        if self.world == 1:
            return
        clock.busy(step, "param_sync")


def learn(ranks, asked, batches, clock):
    for step in STEPS:
        with otel_rl.step(step, phases=ONLY_ON_SEVERAL_DEVICES):
            with otel_rl.phase("collector_wait"):
                clock.busy(step, "logger")
                clock.busy(step, "sync_coordination")
                asked.put(step)
                clock.note(step, "collector_wait", batches.get())
            ranks.wait(clock, step)
            clock.busy(step, "batch_create")
            clock.busy(step, "h2d_copy")
            for _ in range(1 + 3 * ranks.rank):
                clock.busy(step, "train")
            ranks.average(clock, step)
            ranks.wait(clock, step)
            with otel_rl.phase("weight_sync"):
                clock.busy(step, "weight_push")


def rank_main(rank, world, barrier, arrivals, said):
    otel_rl.init(role="trainer", index=rank, count=world)
    context = multiprocessing.get_context("spawn")
    asked, batches = context.SimpleQueue(), context.SimpleQueue()
    collector = context.Process(target=collect, args=(asked, batches))
    collector.start()
    clock = Clock()
    learn(Ranks(rank, world, barrier, arrivals), asked, batches, clock)
    asked.put(None)
    collector.join()
    said.put((rank, clock.spent))
    otel_rl.finish(timeout_s=60)


def train(world):
    '''Train with so many ranks, each a process, and print what each knows of its time.'''
    context = multiprocessing.get_context("spawn")
    barrier, arrivals = context.Barrier(world), context.Array("q", world, lock=False)
    said = context.SimpleQueue()
    ranks = [
        context.Process(target=rank_main, args=(rank, world, barrier, arrivals, said))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    print(json.dumps(dict(said.get() for _ in ranks)))
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


def written(tmp_path: Path, program: str) -> Path:
    """``program`` as a file, as multiprocessing's spawn needs it."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program), encoding="utf-8")
    return file


def environment(home: Path, sink: Sink) -> dict[str, str]:
    return clean_environment(
        home,
        PYTHONPATH=str(ROOT),
        OTEL_RL_EXPERIMENT="e",
        OTEL_EXPORTER_OTLP_ENDPOINT=sink.url,
        OTEL_METRIC_EXPORT_INTERVAL="60000",
    )


def run(sink: Sink, tmp_path: Path, program: str) -> str:
    """Run ``program`` to its end. Returns what it printed."""
    finished = subprocess.run(
        [sys.executable, str(written(tmp_path, program))],
        env=environment(tmp_path, sink),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


Spent = dict[str, dict[str, float]]
"""By step and phase, in seconds, at least."""


def trained(sink: Sink, tmp_path: Path, world: int) -> dict[int, Spent]:
    """What each rank knows of its time."""
    out = run(sink, tmp_path, f"{LEARNER}\nif __name__ == '__main__':\n    train({world})\n")
    return {
        int(rank): {
            step: {phase: ns / 1e9 for phase, ns in phases.items()}
            for step, phases in steps.items()
        }
        for rank, steps in json.loads(out).items()
    }


def reported(sink: Sink, rank: int, step: int) -> tuple[dict[object, float], float]:
    """(seconds of each phase, of the iteration), as one rank reported them at a step."""
    phases: dict[object, float] = {}
    for measured in sink.measurements("rl.phase.duration"):
        if (measured.resource.get("rl.worker.index"), measured.step) == (rank, step):
            assert measured.attributes["rl.phase"] not in phases
            phases[measured.attributes["rl.phase"]] = measured.value
    (iteration_s,) = [
        measured.value
        for measured in sink.measurements("rl.iteration.duration")
        if (measured.resource.get("rl.worker.index"), measured.step) == (rank, step)
    ]
    return phases, iteration_s


def holds_nothing_else(phase: str, phases: dict[object, float], spent: Spent, step: int) -> bool:
    """Whether a phase has no time that its process knows to have spent in another one."""
    elsewhere_s = sum(
        seconds for name, seconds in spent[str(step)].items() if name not in (phase, "weight_push")
    )
    parts_left_out = sum(seconds for name, seconds in phases.items() if name != "weight_push")
    return phases[phase] <= parts_left_out - elsewhere_s + EPSILON_S


def test_of_a_late_collector_the_learner_has_waited_for_it_and_for_nothing_else(
    sink: Sink, tmp_path: Path
) -> None:
    spent = trained(sink, tmp_path, world=1)[0]
    for step in (1, 2, 3):
        phases, iteration_s = reported(sink, 0, step)
        # All of the time that the collector knows to have kept it waiting,
        assert phases["collector_wait"] >= spent[str(step)]["collector_wait"]
        # and none of what the learner did meanwhile or afterwards.
        assert holds_nothing_else("collector_wait", phases, spent, step)
        assert holds_nothing_else("train", phases, spent, step)
        whole_s = sum(seconds for name, seconds in phases.items() if name != "weight_push")
        assert whole_s == pytest.approx(iteration_s, abs=EPSILON_S)


@pytest.mark.slow
def test_barriers_and_collectives_of_several_ranks_are_apart_from_waits_and_from_train(
    sink: Sink, tmp_path: Path
) -> None:
    spent = trained(sink, tmp_path, world=2)
    for rank in (0, 1):
        for step in (1, 2, 3):
            phases, iteration_s = reported(sink, rank, step)
            for phase in ("collector_wait", "rank_barrier", "train", "param_sync"):
                assert phases[phase] >= spent[rank][str(step)][phase]
                assert holds_nothing_else(phase, phases, spent[rank], step)
            whole_s = sum(seconds for name, seconds in phases.items() if name != "weight_push")
            assert whole_s == pytest.approx(iteration_s, abs=EPSILON_S)
    assert any(spent[rank]["2"]["rank_barrier"] > 0 for rank in (0, 1)), "one has waited"


def test_one_device_reports_the_fields_of_several_with_zero_where_there_is_nothing(
    sink: Sink, tmp_path: Path
) -> None:
    trained(sink, tmp_path, world=1)
    phases, _ = reported(sink, 0, 2)
    assert set(phases) == {
        "collector_wait",
        "logger",
        "sync_coordination",
        "rank_barrier",
        "batch_create",
        "h2d_copy",
        "train",
        "param_sync",
        "weight_sync",
        "weight_push",
        "unaccounted",
    }
    assert (phases["rank_barrier"], phases["param_sync"]) == (0.0, 0.0)


def test_a_batch_that_is_ready_costs_no_wait_and_one_that_is_not_costs_its_own(
    sink: Sink, tmp_path: Path
) -> None:
    out = run(
        sink,
        tmp_path,
        LEARNER
        + """
if __name__ == "__main__":
    otel_rl.init(role="trainer", index=0, count=1)
    context = multiprocessing.get_context("spawn")
    wanted, held, ready = context.SimpleQueue(), context.SimpleQueue(), context.Event()
    prefetcher = context.Process(target=prefetch, args=(wanted, held, ready))
    prefetcher.start()
    held_ns = {}
    clock = Clock()
    for step in (1, 2):
        if step == 2:  # the prefetcher is ahead
            wanted.put(step)
            held_ns[step] = held.get()
            ready.wait()
        with otel_rl.step(step, phases=("collector_wait", "replay_batch_wait")):
            if not ready.is_set():
                with otel_rl.phase("replay_batch_wait"):
                    wanted.put(step)  # the prefetcher begins now
                    ready.wait()
            ready.clear()
            clock.busy(step, "train")
        if step == 1:
            held_ns[step] = held.get()
    wanted.put(None)
    prefetcher.join()
    print(json.dumps(held_ns))
""",
    )
    missed, _ = reported(sink, 0, 1)
    assert missed["replay_batch_wait"] >= json.loads(out)["1"] / 1e9
    hit, _ = reported(sink, 0, 2)
    assert hit["replay_batch_wait"] == 0.0
    assert (missed["collector_wait"], hit["collector_wait"]) == (0.0, 0.0)


def test_in_the_run_the_phases_add_up_and_the_pipeline_is_derived(tmp_path: Path) -> None:
    program = written(tmp_path, f"{LEARNER}\nif __name__ == '__main__':\n    train(2)\n")
    done = otel_rl(
        *("run", "--tracker", "jsonl", "--experiment", "phases", "--"),
        *(sys.executable, program),
        cwd=tmp_path,
        env=clean_environment(tmp_path, PYTHONPATH=str(ROOT), **OPEN_FOR_LONG),
    )
    assert done.status == 0, done.err
    ranks: list[Spent] = [
        {step: {name: ns / 1e9 for name, ns in spent.items()} for step, spent in steps.items()}
        for steps in json.loads(done.out).values()
    ]
    rows = {
        row.step: row.values
        for row in jsonl_rows(tmp_path, "phases")
        if "trainer/iteration/duration" in row.values
    }
    assert list(rows) == [1, 2, 3]
    for step, row in rows.items():
        phases = {
            key.removeprefix("phase/trainer/"): value
            for key, value in row.items()
            if key.startswith("phase/trainer/") and not key.endswith("/rank_max")
        }
        whole_s = sum(seconds for name, seconds in phases.items() if name != "weight_push")
        assert whole_s == pytest.approx(row["trainer/iteration/duration"], abs=EPSILON_S)
        known_s: Counter[str] = Counter()
        for rank in ranks:
            known_s.update({name: s / len(ranks) for name, s in rank[str(step)].items()})
        known_s["weight_sync"] += known_s["weight_push"]  # which is a part of it
        for name, seconds in known_s.items():
            assert phases[name] >= seconds - EPSILON_S, name
        elsewhere_s = known_s.total() - known_s["weight_push"]
        assert phases["unaccounted"] <= whole_s - elsewhere_s + 2 * EPSILON_S
        summands = ("h2d_copy", "train", "param_sync", "weight_sync")
        pipeline_s = sum(phases[name] for name in summands)
        assert row["trainer/pipeline/duration"] == pytest.approx(pipeline_s, abs=EPSILON_S)


# While it lasts


def points(sink: Sink, name: str) -> list[tuple[dict[str, object], NumberDataPoint]]:
    """(resource, point) of every point of a gauge that the SDK observed, in order of arrival."""
    return [
        (pairs(resource.resource.attributes), point)
        for request in list(sink.metrics)
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.gauge.data_points
    ]


@contextmanager
def running(
    sink: Sink, tmp_path: Path, program: str, **variables: str
) -> Iterator["subprocess.Popen[str]"]:
    """``program`` until the end of the block, where its standard input ends. It must end well."""
    process = subprocess.Popen(
        [sys.executable, str(written(tmp_path, program))],
        env=environment(tmp_path, sink) | {"OTEL_METRIC_EXPORT_INTERVAL": "100"} | variables,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()


def ages(sink: Sink, phase: str) -> list[float]:
    return [
        point.as_double
        for _, point in points(sink, "rl.worker.phase.age")
        if pairs(point.attributes) == {"rl.phase": phase}
    ]


def grows(phase: str) -> Callable[[Sink], bool]:
    return lambda sink: len(ages(sink, phase)) >= 4


def test_a_hung_step_shows_which_phase_it_hangs_in_and_for_how_long(
    sink: Sink, tmp_path: Path
) -> None:
    program = """
        import sys
        import otel_rl
        otel_rl.init(role="trainer", index=0, count=1)
        with otel_rl.step(7), otel_rl.phase("param_sync"):
            sys.stdin.read()
    """
    with running(sink, tmp_path, program):
        sink.wait(grows("param_sync"))
        seen = ages(sink, "param_sync")
        assert seen == sorted(set(seen)), "it grows"
        assert {point.as_int for _, point in points(sink, "rl.worker.step.number")} == {7}
        step_ages = [point.as_double for _, point in points(sink, "rl.worker.step.age")]
        assert step_ages == sorted(set(step_ages))
        assert sink.measurements("rl.phase.duration") == [], "it is still in the phase"


def test_a_hang_in_a_task_of_an_event_loop_shows_too(sink: Sink, tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        import otel_rl

        async def hang():
            async with otel_rl.phase("generate"):
                await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

        otel_rl.init(role="generator", index=0, count=1)
        asyncio.run(hang())
    """
    with running(sink, tmp_path, program):
        sink.wait(grows("generate"))


def beats(sink: Sink) -> Counter[object]:
    """Heartbeats by process id."""
    found = points(sink, "otel_rl.worker.heartbeat")
    assert all(point.flags == 1 and point.time_unix_nano for _, point in found)
    return Counter(resource["process.pid"] for resource, _ in found)


def test_an_idle_worker_says_that_it_lives_and_a_forked_helper_is_no_worker(
    sink: Sink, tmp_path: Path
) -> None:
    program = """
        import os, sys
        import otel_rl
        otel_rl.init(role="reward", index=0, count=1)
        child = os.fork()
        sys.stdin.read()
        if child:
            os.waitpid(child, 0)
    """
    with running(sink, tmp_path, program) as process:
        sink.wait(lambda sink: beats(sink)[process.pid] >= 3)
    assert set(beats(sink)) == {process.pid}


def test_a_busy_worker_sends_its_heartbeats_with_what_it_measured(
    sink: Sink, tmp_path: Path
) -> None:
    program = """
        import sys, threading
        import otel_rl
        otel_rl.init(role="reward", index=0, count=1)
        stop = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
        while not stop.wait(0.001):
            otel_rl.log({"reward": 1.0})
    """

    def exports(sink: Sink) -> list[ExportMetricsServiceRequest]:
        return [export for export in sink.metrics if list(measurements([export]))]

    with running(sink, tmp_path, program) as process:
        sink.wait(lambda sink: len(exports(sink)) >= 4)
    assert not list(measurements(sink.metrics[:1]))
    assert all(
        b"otel_rl.worker.heartbeat" in export.SerializeToString() for export in exports(sink)
    )
    # One in each, also in those of an interval in which a busy machine let it measure nothing.
    assert beats(sink)[process.pid] == len(sink.metrics)


def test_what_a_script_measures_first_does_not_wait_for_the_end_of_an_interval(
    sink: Sink, tmp_path: Path
) -> None:
    program = """
        import sys
        from opentelemetry import metrics
        metrics.get_meter("m").create_gauge("depth").set(1.0)
        sys.stdin.read()
    """
    of = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000", "OTEL_PYTHON_METER_PROVIDER": "otel_rl"}
    with running(sink, tmp_path, program, **of):
        sink.wait(lambda sink: [m.name for m in measurements(sink.metrics)] == ["depth"])


# How processes end


def test_a_fork_within_a_phase_leaves_it_to_the_parent(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        import os, sys
        import otel_rl
        otel_rl.init(role="trainer", index=0, count=1)
        with otel_rl.step(1):
            with otel_rl.phase("train"):
                child = os.fork()
        if not child:
            with otel_rl.step(2), otel_rl.phase("reward"):
                pass
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
    )
    found = Counter(
        (m.step, m.attributes["rl.phase"]) for m in sink.measurements("rl.phase.duration")
    )
    assert found == {
        (1, "train"): 1,
        (1, "unaccounted"): 1,
        (2, "reward"): 1,
        (2, "unaccounted"): 1,
    }
    spans = Counter(
        span.name
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )
    assert spans == {"rl.loop": 2, "rl.train": 1, "rl.reward": 1}


def test_what_is_open_at_the_end_of_a_thread_or_of_the_process_is_counted(
    sink: Sink, tmp_path: Path
) -> None:
    run(
        sink,
        tmp_path,
        """
        import threading
        import otel_rl
        otel_rl.init(role="trainer", index=0, count=1)
        phase = otel_rl.phase("replay")
        thread = threading.Thread(target=phase.__enter__)
        thread.start()
        thread.join()
        opened = threading.Event()

        def serve():
            with otel_rl.phase("generate"), otel_rl.phase("reward"):
                opened.set()
                threading.Event().wait()

        threading.Thread(target=serve, daemon=True).start()
        opened.wait()
        """,
    )
    lost = sums(sink.metrics, "otel_rl.worker.measurements.dropped")
    assert {reason: n for (_, reason), n in lost.items()} == {"unclosed_phase": 3}


def test_an_exit_within_phases_reports_them(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        import sys
        import otel_rl
        otel_rl.init(role="trainer", index=0, count=1)
        with otel_rl.step(1), otel_rl.phase("train"):
            sys.exit(0)
        """,
    )
    found = {m.attributes["rl.phase"] for m in sink.measurements("rl.phase.duration")}
    assert found == {"train", "unaccounted"}
