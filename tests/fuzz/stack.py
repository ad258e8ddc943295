"""The bridge from its door to its rows, as the fuzzer drives it.

Everything is the bridge's own: HTTP and gRPC servers, journal, spool, row processor, run store.
Only the tracker is missing, the clock is an argument, and batches are made durable a few hundred
at a time, so that a million requests take minutes.
"""

import errno
import http.client
import logging
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from random import Random

import grpc
from google.protobuf.json_format import MessageToJson

from otel_rl.bridge.counters import Counter, Counters, SampleDrop, Where
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.journal.sqlite import SqliteJournal
from otel_rl.bridge.receive.answers import export_response, status_message
from otel_rl.bridge.receive.app import PATHS
from otel_rl.bridge.receive.body import decompress
from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.bridge.receive.grpc import SERVICES, GrpcServer
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline, Storage
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.bridge.rows.scheduler import Around, Scheduler
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.errors import OtelRLError
from otel_rl.records import Batch, ExperimentKey, Row
from tests.fuzz.cases import JSON, Case
from tests.fuzz.mutations import damaged_bytes

TRACKER = "fuzz"

# Small enough to be reached, so that what happens at the bounds is fuzzed, too.
LIMITS = ReceiveLimits(
    max_body_bytes=1 << 20,
    max_messages_per_request=5_000,
    max_in_flight_bytes=16 << 20,
    max_experiments=20,
    max_concurrent_requests=4,
)
ALIGN = AlignSettings(
    max_series=300, max_keys=600, max_open_steps=100, max_remembered=10_000, max_spans=1_000
)


class _Errors(logging.Handler):
    """Counts what anything logs as an error: the server's own, for example, of an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        sys.stderr.write(f"{self.format(record)}\n")


class Stack:
    """A bridge without a tracker, on one directory.

    Args:
        directory: Of the journal.
        now_ns: The clock. Set ``now_ns`` to move it.
    """

    limits = LIMITS

    def __init__(self, directory: Path, now_ns: int) -> None:
        self.now_ns = now_ns
        self._errors = _Errors()
        self.counters = Counters()
        self._touched: set[ExperimentKey] = set()
        self._journal = SqliteJournal(directory)
        self._spool = Spool(self._journal)
        self._run_store = RunStore(self._journal)
        self._deliveries = DeliveryStore(self._journal, TRACKER)
        self._drain = Scheduler(
            self._spool,
            self._run_store,
            ALIGN,
            self.counters,
            around=Around(notify=lambda key: self._touched.add(key)),
        )
        # _lock guards _waiting.
        self._lock = threading.Lock()
        self._waiting: list[Batch] = []
        self._forgotten: dict[ExperimentKey, int] = {}
        self._intake = IngestPipeline(
            Storage(self._accept),
            LIMITS,
            self.counters,
            clock_ns=lambda: self.now_ns,
            experiments=Experiments(LIMITS.max_experiments, self._in_use),
        )
        self._http = HttpServer(self._intake, port=0)
        self._grpc = GrpcServer(self._intake, port=0)

    @contextmanager
    def running(self) -> Iterator["Stack"]:
        """Serve in the block; close everything after it."""
        with (
            self._http,
            self._grpc,
            grpc.insecure_channel(self._grpc.address) as self._channel,
        ):
            self._connection = http.client.HTTPConnection(self._http.address, timeout=20)
            logging.getLogger().addHandler(self._errors)
            try:
                yield self
            finally:
                logging.getLogger().removeHandler(self._errors)
                self._connection.close()
        self._intake.close()
        self._journal.close()

    # Three ways in. Each gives the outcome as a word, and raises for what must not happen.

    def take(self, case: Case) -> str:
        """What the HTTP server does with a request, without a socket."""
        try:
            with self._intake.hold() as held:
                held.add(len(case.body))
                payload = decompress(
                    case.body, case.encoding, max_bytes=LIMITS.max_body_bytes, held=held
                )
                admitted = self._intake.take(case.signal, payload, is_json=case.media == JSON)
        except OtelRLError as error:
            answer, text = self._intake.answer(error, Where.HTTP)
            status = status_message(answer, text, retry_after_s=1)
            status.SerializeToString()
            MessageToJson(status)
            return f"{answer.http}"
        response = export_response(case.signal, admitted)
        response.SerializeToString()
        MessageToJson(response)
        return "partial" if admitted.message else "ok"

    def post(self, case: Case) -> str:
        """Through the HTTP server, over a connection that is kept alive."""
        headers = {"content-type": case.media, "content-encoding": case.encoding}
        self._connection.request("POST", PATHS[case.signal], case.body, headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status not in {200, 400, 413}:
            raise AssertionError(f"HTTP {answer.status}")
        return "ok" if answer.status == 200 else f"{answer.status}"

    def send_raw(self, random: Random, case: Case) -> str:
        """As bytes that are nearly an HTTP request, on a connection of their own."""
        head = (
            f"POST {PATHS[case.signal]} HTTP/1.1\r\nhost: x\r\ncontent-type: {case.media}\r\n"
            f"content-encoding: {case.encoding}\r\ncontent-length: {len(case.body)}\r\n\r\n"
        )
        if random.random() < 0.5:
            sent = damaged_bytes(random, head.encode(), case.body) + case.body
        else:
            sent = (head.encode() + case.body)[: random.randint(0, len(head) + len(case.body))]
        host, _, port = self._http.address.rpartition(":")
        received = b""
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            # An answer comes at once; who gets none has promised more bytes, or is cut off.
            connection.settimeout(random.choice((0.005, 0.05)))
            try:
                connection.sendall(sent)
                if random.random() < 0.3:
                    connection.shutdown(socket.SHUT_WR)
                received = connection.recv(1 << 16)
            except (ConnectionResetError, BrokenPipeError, TimeoutError):
                pass
            except OSError as error:
                # Between its answer and our shutdown the bridge may close the connection.
                if error.errno != errno.ENOTCONN:
                    raise
        status = received[9:12].decode()
        if status.startswith("5"):
            raise AssertionError(f"HTTP {status}")
        return status or "nothing"

    def call(self, case: Case) -> str:
        """Through the gRPC server."""
        method = f"/{SERVICES[case.signal]}/Export"
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = self._channel.unary_unary(method, bytes, bytes)
        try:
            call(case.body, timeout=20)
        except grpc.RpcError as error:
            code = error.code()
            if code not in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}:
                raise AssertionError(f"gRPC {code}") from error
            return f"{code.name.lower()}"
        return "ok"

    def make_rows(self, now_ns: int) -> None:
        """Make what was taken durable, and rows of it that are complete by ``now_ns``."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if waiting:
            self._spool.append(waiting)
        self.now_ns = now_ns
        while self._drain.round(now_ns):
            pass

    def rows(self, key: ExperimentKey) -> Sequence[Row]:
        """Rows that were made since the last ``forget_rows``."""
        return self._run_store.rows(key, start=self._forgotten.get(key, 0), limit=100_000)

    def forget_rows(self) -> None:
        """Let the journal be as if a tracker had them all."""
        touched, self._touched = self._touched, set()
        for key in touched:
            next_row = self._run_store.next_row(key)
            self._deliveries.confirmed(key, next_row)
            self._deliveries.prune(key, next_row)
            self._forgotten[key] = next_row

    def faults(self) -> dict[str, int]:
        """What the bridge counted that no input may cause."""
        counts = {
            "exceptions": self.counters.value(Counter.EXCEPTIONS),
            "undecodable": self.counters.value(
                Counter.SAMPLES_DROPPED, reason=SampleDrop.UNDECODABLE
            ),
            "damaged": self.counters.value(Counter.SAMPLES_DROPPED, reason=SampleDrop.DAMAGED),
            "logged errors": self._errors.count,
        }
        return {name: n for name, n in counts.items() if n}

    def _accept(self, batches: Sequence[Batch]) -> Future[None]:
        with self._lock:
            self._waiting.extend(batches)
        kept: Future[None] = Future()
        kept.set_result(None)
        return kept

    def _in_use(self) -> Sequence[ExperimentKey]:
        with self._lock:
            return [*self._drain.experiments(), *(batch.experiment for batch in self._waiting)]
