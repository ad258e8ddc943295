"""Forks, spawns and exits: each process reports its own measurements once, and all of them."""

import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.otlp_sink import Sink, pairs, serve, sums
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

PROLOGUE = """
import multiprocessing, os, sys, threading, time
from opentelemetry import metrics, trace
import otel_rl

def setup():
    otel_rl.init(experiment="e", role="trainer", index=0, count=1, export_interval_s=60)

def instruments():
    meter = metrics.get_meter("mine")
    return meter.create_gauge("loss"), meter.create_counter("tokens")
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve(Sink()) as serving:
        yield serving


def run(sink: Sink, tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run ``program`` as a file, as multiprocessing's spawn needs it."""
    file = tmp_path / "program.py"
    file.write_text(PROLOGUE + textwrap.dedent(program), encoding="utf-8")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SLURM_"))}
    environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_RL_EXIT_TIMEOUT": "60"}
    finished = subprocess.run(
        [sys.executable, str(file)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


@pytest.mark.parametrize("is_small", slow_after(1, [True, False]))
def test_as_many_spans_wait_as_the_sdks_variable_says(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    n = 10_000
    program = f"""
        import os
        if {is_small}:
            os.environ["OTEL_BSP_MAX_QUEUE_SIZE"] = "8"
        setup()
        tracer = trace.get_tracer("mine")
        for _ in range({n}):
            tracer.start_span("s").end()
        assert otel_rl.finish(timeout_s=60)
        """
    run(sink, tmp_path, program)
    sent = sum(
        len(scope.spans)
        for request in sink.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
    )
    lost = sum(sums(sink.metrics, "otel_rl.worker.spans.dropped").values())
    assert sent + lost == n
    assert (lost > 0) == is_small


def test_what_an_exact_view_has_lost_is_not_counted_again_by_a_forked_child(
    sink: Sink, tmp_path: Path
) -> None:
    done = run(
        sink,
        tmp_path,
        """
        from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from otel_rl.sdk import exact_view
        from otel_rl import sdk as exemplar_view

        def lost(reader):
            data = reader.get_metrics_data()
            scopes = [] if data is None else data.resource_metrics[0].scope_metrics
            return sum(
                point.value
                for scope in scopes
                for metric in scope.metrics
                if metric.name == "otel_rl.worker.measurements.dropped"
                for point in metric.data.data_points
            )

        exemplar_view._CAPACITY = 5
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(
            MeterProvider(
                [reader],
                views=[exact_view()],
                exemplar_filter=AlwaysOnExemplarFilter(),
            )
        )
        gauge = metrics.get_meter("m").create_gauge("g")
        for _ in range(12):
            gauge.set(1.0)
        for thread in threading.enumerate():
            if thread.name == "otel-rl-exact-drops":
                thread.join(60)
        assert lost(reader) == 7, lost(reader)
        for _ in range(5):
            gauge.set(1.0)
        if os.fork() == 0:
            for _ in range(7):
                gauge.set(1.0)
            print("child", lost(reader), flush=True)
            os._exit(0)
        os.wait()
        print("parent", lost(reader), flush=True)
        """,
    )
    assert done.stdout.splitlines() == ["child 2", "parent 7"]


def instances(sink: Sink) -> dict[object, set[object]]:
    """Instance ids by process id."""
    found: dict[object, set[object]] = {}
    for resource in sink.resources():
        found.setdefault(resource["process.pid"], set()).add(resource["service.instance.id"])
    return found


def test_a_clean_exit_delivers_everything(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        setup()
        loss, tokens = instruments()
        for step in range(5000):
            loss.set(float(step), {"rl.loop.iteration": step})
            tokens.add(1)
        """,
    )
    assert [m.step for m in sink.measurements("loss")] == list(range(5000))
    assert list(sums(sink.metrics, "tokens").values()) == [5000]


def test_an_uncaught_exception_delivers_everything(sink: Sink, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROLOGUE + "setup()\ninstruments()[0].set(1.0)\n1 / 0\n", encoding="utf-8")
    environ = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
        "OTEL_RL_EXIT_TIMEOUT": "60",
    }
    finished = subprocess.run(
        [sys.executable, str(file)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert "ZeroDivisionError" in finished.stderr
    assert [m.value for m in sink.measurements("loss")] == [1.0]


@pytest.mark.parametrize("how", slow_after(1, ["fork", "forkserver", "spawn"]))
def test_a_multiprocessing_child_delivers_everything_when_it_ends(
    sink: Sink, tmp_path: Path, how: str
) -> None:
    run(
        sink,
        tmp_path,
        f"""
        def child(n):
            if {how!r} != "fork":
                otel_rl.init(experiment="e", role="env", export_interval_s=60)
            loss, tokens = instruments()
            loss.set(float(n), {{"rl.loop.iteration": n}})
            tokens.add(n)

        if __name__ == "__main__":
            setup()
            loss, tokens = instruments()
            loss.set(0.0, {{"rl.loop.iteration": 0}})
            tokens.add(100)
            context = multiprocessing.get_context({how!r})
            children = [context.Process(target=child, args=(n,)) for n in (1, 2)]
            for process in children:
                process.start()
            for process in children:
                process.join()
        """,
    )
    assert Counter(m.step for m in sink.measurements("loss")) == {0: 1, 1: 1, 2: 1}
    assert sorted(sums(sink.metrics, "tokens").values()) == [1, 2, 100]
    assert len(instances(sink)) == 3


@pytest.mark.slow
def test_a_child_of_a_multiprocessing_that_is_loaded_after_init_delivers_everything(
    sink: Sink, tmp_path: Path
) -> None:
    file = tmp_path / "late.py"
    file.write_text(
        textwrap.dedent(
            """
            import sys
            import otel_rl
            otel_rl.init(experiment="e", role="trainer", index=0, count=1, export_interval_s=60)
            assert "multiprocessing" not in sys.modules
            import multiprocessing

            def child(depth):
                otel_rl.log({"depth": depth}, step=depth)
                if depth < 2:
                    fork(depth + 1)

            def fork(depth):
                process = multiprocessing.get_context("fork").Process(target=child, args=(depth,))
                process.start()
                process.join()
                assert process.exitcode == 0

            fork(1)
            """
        ),
        encoding="utf-8",
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "SLURM_"))}
    environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_RL_EXIT_TIMEOUT": "60"}
    subprocess.run([sys.executable, str(file)], env=environ, check=True, timeout=200)
    assert Counter(m.step for m in sink.measurements("depth")) == {1: 1, 2: 1}


def test_a_forked_child_is_a_new_worker_with_sums_of_its_own(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        setup()
        loss, tokens = instruments()
        metrics.get_meter("mine").create_observable_gauge(
            "pid", [lambda _: [metrics.Observation(os.getpid())]]
        )
        loss.set(1.0, {"rl.loop.iteration": 1})
        tokens.add(1000)
        pid = os.fork()
        if pid == 0:
            loss.set(2.0, {"rl.loop.iteration": 2})
            tokens.add(5)
            otel_rl.log({"by.mlogger": 3.0}, step=3)
            with trace.get_tracer("mine").start_as_current_span("of the child"):
                pass
            sys.exit(0)
        os.waitpid(pid, 0)
        """,
    )
    by_step = {m.step: m for m in sink.measurements()}
    parent, child = by_step[1].resource, by_step[2].resource
    assert set(by_step) == {1, 2, 3}
    assert len(sink.measurements()) == 3
    assert parent["service.instance.id"] != child["service.instance.id"]
    assert parent["process.pid"] != child["process.pid"]
    assert parent["rl.worker.index"] == 0
    assert "rl.worker.index" not in child
    assert sums(sink.metrics, "tokens") == {
        (parent["service.instance.id"],): 1000,
        (child["service.instance.id"],): 5,
    }
    (spans,) = (pairs(r.resource.attributes) for t in sink.traces for r in t.resource_spans)
    assert spans["service.instance.id"] == child["service.instance.id"]
    assert spans["process.pid"] == child["process.pid"]


def test_a_forked_child_may_say_who_it_is(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        def child():
            otel_rl.init(experiment="e", role="env", index=4, export_interval_s=60)
            instruments()[0].set(1.0)

        if __name__ == "__main__":
            setup()
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
            assert process.exitcode == 0
        """,
    )
    (measured,) = sink.measurements("loss")
    assert (measured.resource["rl.worker.role"], measured.resource["rl.worker.index"]) == ("env", 4)


def test_a_forked_child_does_not_speak_on_its_parents_connection(
    sink: Sink, tmp_path: Path
) -> None:
    run(
        sink,
        tmp_path,
        """
        setup()
        for name in ("before", "after"):
            with trace.get_tracer("mine").start_as_current_span(name):
                pass
            otel_rl.flush(timeout_s=60)
            if name == "before" and (pid := os.fork()):
                os.waitpid(pid, 0)
        """,
    )
    assert len(sink.traces) == 3
    assert len(set(sink.trace_ports)) == 2


@pytest.mark.slow
def test_a_fork_while_threads_record_and_export_never_hangs(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        otel_rl.init(experiment="e", role="trainer", export_interval_s=0.001)
        loss, tokens = instruments()
        going = True

        def busy():
            while going:
                loss.set(1.0)
                tokens.add(1)
                otel_rl.log({"m": "not a number"}, step=1)

        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        for n in range(15):
            pid = os.fork()
            if pid == 0:
                loss.set(float(n), {"rl.loop.iteration": n})
                tokens.add(1)
                ok = otel_rl.flush(timeout_s=60)
                os._exit(0 if ok else 3)
            assert os.waitpid(pid, 0)[1] == 0
        going = False
        for thread in threads:
            thread.join()
        """,
    )
    steps = [m.step for m in sink.measurements("loss") if m.step is not None]
    assert sorted(steps) == list(range(15))


@pytest.mark.slow
def test_a_grandchild_is_a_worker_too(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        setup()
        loss, _ = instruments()
        for depth in (1, 2):
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                break
            loss.set(float(depth), {"rl.loop.iteration": depth})
        """,
    )
    found = {m.step: m.resource["service.instance.id"] for m in sink.measurements("loss")}
    assert set(found) == {1, 2}
    assert found[1] != found[2]


def test_user_finalizers_may_still_record(sink: Sink, tmp_path: Path) -> None:
    run(
        sink,
        tmp_path,
        """
        from multiprocessing.util import Finalize

        def child():
            Finalize(None, lambda: instruments()[0].set(9.0), exitpriority=1)

        if __name__ == "__main__":
            setup()
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
        """,
    )
    assert [m.value for m in sink.measurements("loss")] == [9.0]
