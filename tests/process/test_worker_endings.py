"""What each way to end a process leaves in the run (the table in docs/worker.md).

A clean end misses nothing. A killed process misses at most what it recorded in its last export
interval. Nothing stands there twice, and no end means anything else than it would without otel_rl.
"""

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.process.unruly import Endpoint, Request, unruly, worker
from tests.support.otlp_sink import Sink, serve
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

INTERVAL_S = 0.1

PROLOGUE = """
import atexit, concurrent.futures, multiprocessing, os, signal, sys, threading, time
import otel_rl

def log(steps, name="loss"):
    for step in steps:
        otel_rl.log({name: 1.0}, step=step)

def kill(number):
    if number != signal.SIGKILL and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)  # under nohup
    os.kill(os.getpid(), number)
    signal.pause()

def setup(export_interval_s=60):
    otel_rl.init(experiment="e", role="r", export_interval_s=export_interval_s)
"""

CLEAN = {
    "the last line": ("log(range(100))", 0),
    "sys.exit": ("log(range(100)); sys.exit(7)", 7),
    "an exception": ("log(range(100)); 1 / 0", 1),
    "Ctrl-C": ("log(range(100)); kill(signal.SIGINT)", -signal.SIGINT),
    "SIGTERM with a handler that exits": (
        (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
            "log(range(100)); kill(signal.SIGTERM)"
        ),
        143,
    ),
    "a handler that logs": (
        (
            "signal.signal(signal.SIGTERM, lambda *_: (log(range(50, 100)), sys.exit(143)))\n"
            "log(range(50)); kill(signal.SIGTERM)"
        ),
        143,
    ),
    "an exit handler that logs": (
        "atexit.register(log, range(50, 100)); log(range(50))",
        0,
    ),
    "a thread that outlives the main one": (
        (
            "ready = threading.Event()\n"
            "def rest(): ready.wait(); log(range(50, 100))\n"
            "threading.Thread(target=rest).start(); log(range(50)); ready.set()"
        ),
        0,
    ),
    "os._exit after flush": (
        "log(range(100)); otel_rl.flush(timeout_s=60); os._exit(3)",
        3,
    ),
}

KILLED = {
    "os._exit": ("os._exit(3)", 3),
    "exec": ("os.execv('/bin/sh', ['sh', '-c', 'exit 4'])", 4),
    "SIGTERM": ("kill(signal.SIGTERM)", -signal.SIGTERM),
    "SIGKILL": ("kill(signal.SIGKILL)", -signal.SIGKILL),
    "SIGHUP": ("kill(signal.SIGHUP)", -signal.SIGHUP),
    "abort": ("os.abort()", -signal.SIGABRT),
    "a segmentation fault": ("kill(signal.SIGSEGV)", -signal.SIGSEGV),
}


def steps(sink: Sink, name: str = "loss") -> Counter[int | None]:
    return Counter(m.step for m in sink.measurements(name))


def once(*ranges: range) -> Counter[int | None]:
    return Counter(step for each in ranges for step in each)


@pytest.mark.parametrize(("ending", "status"), slow_after(3, CLEAN.values()), ids=CLEAN)
def test_a_clean_end_misses_nothing(ending: str, status: int) -> None:
    with serve(Sink()) as sink, worker(sink.url, f"{PROLOGUE}\nsetup()\n{ending}\n") as program:
        assert program.end() == status
        assert steps(sink) == once(range(100))


@pytest.mark.parametrize(("ending", "status"), slow_after(2, KILLED.values()), ids=KILLED)
def test_a_kill_misses_the_last_interval_at_most(ending: str, status: int) -> None:
    program = (
        f"{PROLOGUE}\nsetup({INTERVAL_S})\nlog(range(100))\n"
        f"sys.stdin.readline()\nlog(range(100, 110))\n{ending}\n"
    )
    with serve(Sink()) as sink, worker(sink.url, program) as running:
        sink.wait(lambda got: len(got.measurements("loss")) == 100)
        running.go_on()
        assert running.end() == status
        assert set(range(100)) <= set(steps(sink)) <= set(range(110))
        assert max(steps(sink).values()) == 1


def test_init_leaves_the_meaning_of_every_signal_alone() -> None:
    program = f"""{PROLOGUE}
def dispositions():
    return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

before = dispositions(), signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, [])
setup()
log(range(1))
after = dispositions(), signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, [])
sys.exit(0 if before == after else 1)
"""
    with serve(Sink()) as sink, worker(sink.url, program) as running:
        assert running.end() == 0, running.output


CHILDREN = {
    "Process that returns": ("process(log, range(100))", 0),
    "Process that raises": ("process(fail, range(100))", 1),
    "Process that calls sys.exit": ("process(leave, range(100))", 5),
    "Process whose thread outlives it": ("process(start, range(100))", 0),
    "Process whose executor outlives it": ("process(submit, range(100))", 0),
    "Pool that is closed": (
        (
            "with context.Pool(2) as pool:\n"
            "    pool.map(log, [range(0, 50), range(50, 100)]); pool.close(); pool.join()"
        ),
        None,
    ),
    "executor": (
        (
            "with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:\n"
            "    list(executor.map(log, [range(0, 50), range(50, 100)]))"
        ),
        None,
    ),
}

CHILD_PROLOGUE = """
def fail(steps):
    log(steps)
    raise SystemError("on purpose")

def leave(steps):
    log(steps)
    sys.exit(5)

def start(steps):
    log(steps[:50])

    def rest():
        threading.main_thread().join()
        log(steps[50:])

    threading.Thread(target=rest).start()

def submit(steps):
    log(steps[:50])
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.submit(time.sleep, 0.5)
    executor.submit(log, steps[50:])

def process(target, *arguments):
    child = context.Process(target=target, args=arguments)
    child.start()
    child.join()
    print("status", child.exitcode, flush=True)
"""


@pytest.mark.parametrize("how", slow_after(1, ["fork", "spawn"]))
@pytest.mark.parametrize(("ending", "status"), slow_after(2, CHILDREN.values()), ids=CHILDREN)
def test_a_child_that_ends_by_itself_misses_nothing(
    ending: str, status: int | None, how: str, tmp_path: Path
) -> None:
    main = "\n".join(f"    {line}" for line in ending.split("\n"))
    program = f"""{PROLOGUE}{CHILD_PROLOGUE}
context = multiprocessing.get_context({how!r})
if __name__ == "__main__":
    setup()
    log(range(100), "parent")
{main}
"""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    start = f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"
    with (
        serve(Sink()) as sink,
        worker(
            sink.url, start, OTEL_RL_EXPERIMENT="e", OTEL_METRIC_EXPORT_INTERVAL="60000"
        ) as running,
    ):
        if status is not None:
            running.wait_for(f"status {status}")
        assert running.end() == 0, running.output
        assert steps(sink) == once(range(100))
        assert steps(sink, "parent") == once(range(100))


@pytest.mark.parametrize("ending", slow_after(1, ["later()", "return", "sys.exit(5)"]))
def test_a_child_forked_by_a_thread_ends_with_its_threads_and_misses_nothing(ending: str) -> None:
    program = f"""{PROLOGUE}
def later():
    first = threading.current_thread()

    def rest():
        first.join()
        log(range(100, 110), "late")

    threading.Thread(target=rest).start()

def fork():
    pid = os.fork()
    if pid == 0:  # it has no other thread, and exit handlers are called by none
        log(range(100))
        {ending}
        return
    print("status", os.waitpid(pid, 0)[1], flush=True)

setup()
log(range(100), "parent")
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""
    with serve(Sink()) as sink, worker(sink.url, program) as running:
        running.wait_for("status 0")
        assert running.end() == 0, running.output
        assert steps(sink) == once(range(100))
        assert steps(sink, "late") == once(range(100, 110) if ending == "later()" else range(0))
        assert steps(sink, "parent") == once(range(100))


KILLED_CHILDREN = {
    "Process.terminate": "child.terminate()",
    "Process.kill": "child.kill()",
    "the end of its parent": "sys.exit()",
    "os._exit": "go.set()",
}


@pytest.mark.parametrize("ending", slow_after(1, KILLED_CHILDREN.values()), ids=KILLED_CHILDREN)
def test_a_child_that_is_killed_misses_the_last_interval_at_most(ending: str) -> None:
    program = f"""{PROLOGUE}
context = multiprocessing.get_context("fork")
go, logged = context.Event(), context.Event()

def target():
    log(range(100))
    sys.stdin = open(0)
    sys.stdin.readline()
    log(range(100, 110))
    logged.set()
    go.wait()
    os._exit(3)

setup({INTERVAL_S})
child = context.Process(target=target, daemon=True)
child.start()
log(range(100), "parent")
logged.wait()
{ending}
child.join()
"""
    with serve(Sink()) as sink, worker(sink.url, program) as running:
        sink.wait(lambda got: len(got.measurements("loss")) == 100)
        running.go_on()
        assert running.end() == 0
        assert set(range(100)) <= set(steps(sink)) <= set(range(110))
        assert max(steps(sink).values()) == 1
        assert steps(sink, "parent") == once(range(100))


def test_a_pool_that_is_terminated_misses_the_last_interval_at_most() -> None:
    program = f"""{PROLOGUE}
def work(steps):
    log(steps)
    assert otel_rl.flush(timeout_s=60)
    log(range(100, 110))

setup()
with multiprocessing.get_context("fork").Pool(1) as pool:  # its end is a terminate
    pool.map(work, [range(100)])
"""
    with serve(Sink()) as sink, worker(sink.url, program) as running:
        assert running.end() == 0
        assert set(range(100)) <= set(steps(sink)) <= set(range(110))


@contextmanager
def grpc_sink() -> Iterator[Sink]:
    sink = Sink()

    class LogsServicer(logs_service_pb2_grpc.LogsServiceServicer):
        def Export(  # noqa: N802  # gRPC's name
            self, request: ExportLogsServiceRequest, context: grpc.ServicerContext
        ) -> ExportLogsServiceResponse:
            del context
            sink.receive("/v1/logs", {}, request.SerializeToString(), 0)
            return ExportLogsServiceResponse()

    class Servicer(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(  # noqa: N802  # gRPC's name
            self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
        ) -> ExportMetricsServiceResponse:
            del context
            sink.receive("/v1/metrics", {}, request.SerializeToString(), 0)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(  # type: ignore[no-untyped-call]
        Servicer(), server
    )
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(  # type: ignore[no-untyped-call]
        LogsServicer(), server
    )
    sink.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield sink
    server.stop(0).wait(60)


@pytest.mark.parametrize("protocol", slow_after(1, ["http/protobuf", "grpc"]))
def test_children_killed_in_the_middle_of_an_export_take_nothing_from_their_parent(
    protocol: str,
) -> None:
    program = f"""{PROLOGUE}
import random, time
setup(0.001)
log(range(1))
assert otel_rl.flush(timeout_s=60)  # the parent has a connection that its children inherit
for child in range(20):
    exporting, exports = os.pipe()
    pid = os.fork()
    if pid == 0:
        log(range(1), f"child {{child}}")
        otel_rl.flush(timeout_s=60)
        os.write(exports, b"!")
        while True:
            log(range(100), "endless")
    log(range(1 + child * 10, 11 + child * 10))
    os.read(exporting, 1)
    time.sleep(random.uniform(0, 0.01))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
    with grpc_sink() if protocol == "grpc" else serve(Sink()) as sink:
        environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        with worker(sink.url, program, **environ) as running:
            assert running.end() == 0, running.output
        assert steps(sink) == once(range(201))
        assert all(steps(sink, f"child {child}") == once(range(1)) for child in range(20))
        assert "lost" not in running.output


def test_an_endpoint_that_is_away_for_a_moment_at_the_end_gets_everything() -> None:
    program = f"""{PROLOGUE}
setup()
log(range(50))
assert otel_rl.flush(timeout_s=60)
sys.stdin.readline()
log(range(50, 100))
"""

    def be_away(endpoint: Endpoint, request: Request) -> None:
        endpoint.refuse()
        request.cut()

    with unruly() as endpoint, worker(endpoint.url, program) as running:
        endpoint.wait_for_attempts(1)
        endpoint.manner = be_away
        running.go_on()
        endpoint.wait_for_attempts(2)
        running.wait_for("retrying")
        endpoint.heal()
        assert running.end() == 0
        assert steps(endpoint.sink) == once(range(100))


def wait_until_healed(endpoint: Endpoint) -> None:
    endpoint.healed.wait()


def test_a_span_processor_of_the_program_that_hangs_does_not_hold_up_the_end() -> None:
    program = f"""{PROLOGUE}
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

class Hanging(SpanProcessor):
    def shutdown(self):
        threading.Event().wait()

setup()
trace.get_tracer_provider().add_span_processor(Hanging())
log(range(50))
"""
    with serve(Sink()) as sink, worker(sink.url, program, OTEL_RL_EXIT_TIMEOUT="1") as running:
        assert running.end() == 0
        assert steps(sink) == once(range(50))


def test_a_second_ctrl_c_ends_the_last_export_without_a_traceback_of_ours() -> None:
    program = f"{PROLOGUE}\nsetup()\nlog(range(100))\nprint('ready', flush=True)\nsignal.pause()\n"
    with (
        unruly(lambda endpoint, _: wait_until_healed(endpoint)) as endpoint,
        worker(endpoint.url, program, OTEL_RL_EXIT_TIMEOUT="600") as process,
    ):
        process.wait_for("ready")
        process.process.send_signal(signal.SIGINT)
        endpoint.wait_for_attempts(1)  # the last export has begun
        process.process.send_signal(signal.SIGINT)
        assert process.end() == -signal.SIGINT
    assert "Exception ignored" not in process.output
    assert process.output.count("Traceback") == 1, "that of the program"
    assert "lost are 100 measurements" in process.output
    assert "(Ctrl-C)" in process.output
