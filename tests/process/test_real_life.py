"""What happens to training processes, and costs their telemetry nothing.

One test for each word of the table in docs/worker.md that no other file holds.
"""

import shutil
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from otel_rl.bridge.keys import read_key
from otel_rl.semconv import names
from tests.process.commands import Row, jsonl_rows, otel_rl
from tests.process.unruly import worker
from tests.support.otlp_sink import Sink, serve, sums

pytestmark = pytest.mark.process

PROLOGUE = """
import asyncio, itertools, multiprocessing, os, signal, sys, threading, time
from opentelemetry import metrics, trace
import otel_rl

def log(steps, name="loss"):
    for step in steps:
        otel_rl.log({name: float(step)}, step=step)

"""

SETUP = """
otel_rl.init(experiment="e", role="trainer", export_interval_s=0.05)
"""


def reported(program: str) -> Sink:
    """What a program that must end well has sent."""
    with serve(Sink()) as sink:
        text = PROLOGUE + SETUP + textwrap.dedent(program)
        with worker(sink.url, text) as running:
            assert running.end() == 0, running.output
        assert "Traceback" not in running.output
        return sink


def in_a_run(
    tmp_path: Path, program: str, *options: str, before: tuple[str, ...] = (), experiment: str = "e"
) -> list[Row]:
    """The rows of the run that a program makes under ``otel-rl run``; nothing was dropped."""
    file = tmp_path / "program.py"
    file.write_text(PROLOGUE + textwrap.dedent(program), encoding="utf-8")
    command = ["run", "--experiment", experiment, "--tracker", "jsonl", *options]
    done = otel_rl(*command, "--", *before, sys.executable, file, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "dropped" not in done.err
    assert "refused" not in done.err
    return [*jsonl_rows(tmp_path, experiment)]


def steps(sink: Sink, name: str = "loss") -> Counter[int | None]:
    return Counter(measured.step for measured in sink.measurements(name))


def once(count: int) -> Counter[int | None]:
    return Counter(range(count))


def column(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[key]) for row in rows if key in row.values]


def test_a_data_loader_that_is_torn_down_takes_nothing_from_the_trainer() -> None:
    # As torch does it: daemons, forked in the middle of training, ended by a signal.
    sink = reported(
        """
        context = multiprocessing.get_context("fork")

        def load(batches, number):
            if number == 0:  # one of them measures; the others are no workers
                otel_rl.log({"loader.decode": 1.0})
                assert otel_rl.flush(timeout_s=60)
                measured.set()
            while True:
                batches.put([number] * 100)

        for epoch in range(3):
            batches, measured = context.Queue(4), context.Event()
            loaders = [
                context.Process(target=load, args=(batches, number), daemon=True)
                for number in range(3)
            ]
            for loader in loaders:
                loader.start()
            for step in range(epoch * 50, epoch * 50 + 50):
                batches.get(timeout=60)
                log([step])
            assert measured.wait(60)
            for loader in loaders:
                loader.terminate()
                loader.join()
        """
    )
    assert steps(sink) == once(150)
    trainers = {m.resource["process.pid"] for m in sink.measurements("loss")}
    loaders = {m.resource["process.pid"] for m in sink.measurements("loader.decode")}
    assert (len(trainers), len(loaders)) == (1, 3)
    assert {resource["process.pid"] for resource in sink.resources()} == trainers | loaders


@pytest.mark.slow
def test_threads_that_record_at_once_lose_nothing() -> None:
    sink = reported(
        """
        meter = metrics.get_meter("mine")
        gauge, counter = meter.create_gauge("by.api"), meter.create_counter("tokens")
        barrier = threading.Barrier(8)

        def work(first):
            barrier.wait()
            for step in range(first, first + 500):
                otel_rl.log({"loss": float(step)}, step=step)
                gauge.set(float(step), {"rl.loop.iteration": step})
                counter.add(1)

        threads = [threading.Thread(target=work, args=(n * 500,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """
    )
    assert steps(sink) == once(4000)
    assert steps(sink, "by.api") == once(4000)
    assert all(m.value == m.step for m in sink.measurements("loss"))
    assert [*sums(sink.metrics, "tokens").values()] == [4000]


@pytest.mark.slow
def test_tasks_that_take_turns_keep_their_metrics_phases_and_spans_apart() -> None:
    sink = reported(
        """
        async def roll_out(number):
            async with otel_rl.step(number):
                for _ in range(20):
                    async with otel_rl.phase("generate"):
                        await asyncio.sleep(0)
                        otel_rl.log({"within": float(number)}, step=number)
                    with otel_rl.phase("reward"):
                        await asyncio.sleep(0.0005)
                otel_rl.log({"loss": float(number)}, step=number)

        async def main():
            async with asyncio.TaskGroup() as group:
                for number in range(25):
                    group.create_task(roll_out(number))

        asyncio.run(main())
        """
    )
    assert steps(sink) == once(25)
    assert steps(sink, "within") == Counter(dict.fromkeys(range(25), 20))
    spent: defaultdict[int | None, float] = defaultdict(float)
    for measured in sink.measurements(names.RL_PHASE_DURATION):
        spent[measured.step] += measured.value
    walls = {m.step: m.value for m in sink.measurements(names.RL_ITERATION_DURATION)}
    assert spent == pytest.approx(walls, rel=1e-9)
    traces = defaultdict(set)
    for measured in sink.measurements("within"):
        traces[measured.step].add(measured.trace_id)
    assert len(set.union(*traces.values())) == 25, "each step is a trace of its own"
    assert all(len(of_a_step) == 1 for of_a_step in traces.values())


def test_a_signal_in_the_middle_of_everything_may_log() -> None:
    sink = reported(
        """
        handled, numbers = 0, itertools.count()

        def tick(*_):  # may interrupt itself
            global handled
            handled = next(numbers)
            log([handled], "in.handler")

        signal.signal(signal.SIGALRM, tick)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        step = 0
        while handled < 500:
            with otel_rl.step(step), otel_rl.phase("train"):
                log([step])
                step += 1
            if step % 100 == 0:
                assert otel_rl.flush(timeout_s=60)
        signal.setitimer(signal.ITIMER_REAL, 0)
        log([step + next(numbers)], "all")
        """
    )
    (all_of_them,) = sink.measurements("all")
    logged, handled = steps(sink), steps(sink, "in.handler")
    assert set(logged.values()) == set(handled.values()) == {1}
    assert len(logged) + len(handled) == all_of_them.value


def test_an_interpreter_that_falls_apart_neither_hangs_nor_complains() -> None:
    sink = reported(
        """
        class Last:
            def __del__(self):
                log([2], "late")

        def chatter():
            while True:
                otel_rl.log({"chatter": 1.0}, step=1)
                with otel_rl.phase("generate"):
                    time.sleep(0.001)

        for _ in range(3):
            threading.Thread(target=chatter, daemon=True).start()
        last = Last()
        last.itself = last  # for the collector of garbage at the very end
        log(range(100))
        """
    )
    assert steps(sink) == once(100)


CLOCK = Path(__file__).with_name("wall_clock.c")

SET_CLOCK = """
import struct

def set_clock(ahead_s):
    with open(os.environ["WALL_CLOCK_AHEAD"], "r+b") as file:
        file.write(struct.pack("=q", int(ahead_s * 1e9)))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.slow
def test_a_clock_that_is_set_back_and_forward_loses_nothing_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    library, ahead = tmp_path / "wall_clock.so", tmp_path / "ahead"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, CLOCK, "-ldl"], check=True)
    ahead.write_bytes(bytes(8))
    rows = in_a_run(
        tmp_path,
        SET_CLOCK
        + textwrap.dedent(
            """
            otel_rl.init(role="trainer")
            meter = metrics.get_meter("mine")
            gauge, tokens = meter.create_gauge("by.api"), meter.create_counter("tokens")
            lengths = meter.create_histogram("lengths")
            for step in range(60):
                if step in (20, 40):
                    before = time.time()
                    set_clock({20: -3600, 40: 300}[step])
                    assert abs(time.time() - before) > 1000
                with otel_rl.step(step), otel_rl.phase("train"):
                    log([step])
                    gauge.set(step, {"rl.loop.iteration": step})
                    tokens.add(1)
                    lengths.record(step)
                if step % 10 == 5:
                    assert otel_rl.flush(timeout_s=60)
            """
        ),
        "--role", "trainer",
        before=("env", f"LD_PRELOAD={library}", f"WALL_CLOCK_AHEAD={ahead}"),
    )  # fmt: skip
    every = [(step, float(step)) for step in range(60)]
    assert sorted(column(rows, "trainer/loss")) == every
    assert sorted(column(rows, "trainer/by/api")) == every
    totals = [total for _, total in column(rows, "trainer/tokens")]
    assert totals == sorted(totals)
    assert totals[-1] == 60
    assert sum(count for _, count in column(rows, "trainer/lengths/count")) == 60
    durations = [seconds for _, seconds in column(rows, "trainer/iteration/duration")]
    assert len(durations) == 60
    assert all(0 < seconds < 60 for seconds in durations)


def test_a_thousand_metrics_in_one_call_are_all_in_the_run(tmp_path: Path) -> None:
    rows = in_a_run(
        tmp_path,
        """
        otel_rl.init(role="trainer")
        for step in range(5):
            otel_rl.log({f"layer.{n}.norm": n + step / 10 for n in range(1000)}, step=step)
        """,
    )
    for step in range(5):
        (row,) = [row for row in rows if row.step == step and "trainer/layer/0/norm" in row.values]
        logged = [row.values[f"trainer/layer/{n}/norm"] for n in range(1000)]
        assert logged == [n + step / 10 for n in range(1000)]


@pytest.mark.slow
def test_scalars_of_numpy_are_numbers_wherever_they_are_given() -> None:
    sink = reported(
        """
        import numpy

        class Tensor:  # what a 0-d tensor of torch is to us
            def __init__(self, value): self.value = value
            def numel(self): return 1
            def detach(self): return self
            def clone(self): return Tensor(self.value)
            def item(self): return self.value

        meter = metrics.get_meter("mine")
        step = numpy.int64(7)
        kinds = [
            numpy.float16(0.5), numpy.float32(0.5), numpy.float64(0.5), numpy.array(0.5),
            numpy.array([0.5]), numpy.longdouble(0.5), Tensor(0.5),
        ]
        for number, value in enumerate(kinds):
            otel_rl.log({f"logged.{number}": value}, step=step)
            meter.create_gauge(f"set.{number}").set(value, {"rl.loop.iteration": step})
        counter = meter.create_counter("tokens")
        for value in (numpy.int32(1), numpy.int64(1), numpy.float32(1), numpy.array(1), Tensor(1)):
            counter.add(value)
        reused = numpy.zeros(())
        for step in range(3):
            reused[()] = step
            otel_rl.log({"loss": reused}, step=step)
        sample = {"reward": numpy.float32(0.5), "tokens": numpy.int64(3)}
        otel_rl.log_samples([sample], step=step)
        """
    )
    halves = [m for m in sink.measurements() if m.name.startswith(("logged.", "set."))]
    assert {(m.value, m.step) for m in halves} == {(0.5, 7)}
    assert len(halves) == 14
    assert [*sums(sink.metrics, "tokens").values()] == [5]
    assert [m.value for m in sink.measurements("loss")] == [0, 1, 2]
    (sample,) = sink.events(names.RL_ROLLOUT_SAMPLE)
    assert sample.body == {"reward": 0.5, "tokens": 3}


def test_names_of_every_script_are_in_the_run_as_they_were_given(tmp_path: Path) -> None:
    rows = in_a_run(
        tmp_path,
        """
        otel_rl.init(role="обучение", config={"学習率": "3e-6 ✓"}, tags=["größe"])
        for step in range(3):
            otel_rl.log({"損失": float(step), "naïve/café 🙂": 1.0}, step=step)
        sample = {"prompt": "मेरा नाम", "completion": "\\u202eabc\\ud800"}
        otel_rl.log_samples([sample], step=2)
        """,
        experiment="実験 №5",
    )
    read = defaultdict(list)
    for row in rows:
        for key, value in row.reported.items():
            read[read_key(key)].append((row.step, value))
    assert read["обучение", "損失"] == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert [step for step, _ in read["обучение", "naïve", "café 🙂"]] == [0, 1, 2]
