"""What stands between senders and the bridge: a network that fails, and a collector.

* ``/v1/metrics`` passes requests on. Connections are cut before, in the middle of and after the
  request, and in the middle of the answer; requests are delayed, and come again seconds later.
* ``/collector/v1/metrics`` answers at once and keeps what it got, as a collector with a queue on
  disk. It passes points on in requests of its own making, in another order, in parallel, over HTTP
  and gRPC, until the bridge has answered for each; a request whose answer was lost comes again cut
  differently.

Each request is noted in the books before it is sent, and again when the bridge answers 200.
"""

import contextlib
import gzip
import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from tests.faults.books import Books
from tests.faults.reading import read

_TIMEOUT_S = 20.0
_RETRYABLE = {429, 502, 503, 504}
_RETRYABLE_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
_EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_PAUSE_S = 0.1
_MAX_DELAY_S = 0.3
_MAX_REPLAY_S = 4.0
_MAX_KEPT = 100


class Fate(StrEnum):
    """What happens to a request.

    Attributes:
        PASS: Nothing.
        DELAY: It takes longer.
        REFUSE: The connection ends before the request leaves.
        CUT: The connection ends in the middle of the request.
        HANG_UP: The connection ends before the answer can come.
        LOSE_ANSWER: The answer is thrown away.
        CUT_ANSWER: The connection ends in the middle of the answer.
    """

    PASS = "pass"
    DELAY = "delay"
    REFUSE = "refuse"
    CUT = "cut"
    HANG_UP = "hang up"
    LOSE_ANSWER = "lose answer"
    CUT_ANSWER = "cut answer"


_FATES = {
    Fate.PASS: 60,
    Fate.DELAY: 10,
    Fate.REFUSE: 4,
    Fate.CUT: 6,
    Fate.HANG_UP: 6,
    Fate.LOSE_ANSWER: 8,
    Fate.CUT_ANSWER: 6,
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the bridge listens, as ``HOST:PORT``."""

    http: str
    grpc: str


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request as it came."""

    body: bytes
    content_encoding: str = ""

    def parsed(self) -> ExportMetricsServiceRequest:
        body = gzip.decompress(self.body) if self.content_encoding else self.body
        return ExportMetricsServiceRequest.FromString(body)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer; ``is_cut`` if the connection ends in the middle of it."""

    status: int
    body: bytes
    is_cut: bool = False


class Gateway:
    """Listens on a port of its own.

    Args:
        addresses: Of the bridge, None while it is down.
        books: Where offers and acknowledgements are noted.
        seed: Of everything that happens.
    """

    def __init__(self, addresses: Callable[[], Addresses | None], books: Books, seed: int) -> None:
        self._addresses = addresses
        self._books = books
        # _lock guards everything below.
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._is_calm = False
        self._is_over = False
        self._happened: Counter[str] = Counter()
        self._kept: list[_Sent] = []
        self._replays: list[tuple[float, _Sent]] = []
        self._queue: list[ExportMetricsServiceRequest] = []
        self._in_flight = 0
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._threads = [
            threading.Thread(
                target=self._server.serve_forever,
                kwargs={"poll_interval": 0.05},
                name="faults-http",
            ),
            threading.Thread(target=self._replay, name="faults-replay"),
            *(
                threading.Thread(target=self._consume, args=(send,), name=f"faults{send.__name__}")
                for send in (_post, _call)
            ),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def happened(self) -> Counter[str]:
        """How often each fate but PASS came, a request was repeated, and the bridge said no."""
        with self._lock:
            return Counter(self._happened)

    def calm(self) -> None:
        """Nothing more goes wrong, and some of what was acknowledged comes once more."""
        with self._lock:
            self._is_calm = True
            again = list(self._kept)
            self._random.shuffle(again)
            self._replays += [(0.0, sent) for sent in again]
            self._happened["repeat"] += len(again)

    def is_drained(self) -> bool:
        """Whether all that was kept has been passed on."""
        with self._lock:
            return not self._queue and not self._replays and not self._in_flight

    # What the handler calls, in a thread for each connection.

    def passed_on(self, sent: _Sent) -> _Answer | None:
        """Pass a request on. None: the sender's connection ends without an answer."""
        fate = self._fate()
        answer = self._forward(sent, fate)
        if fate in {Fate.LOSE_ANSWER, Fate.HANG_UP} or answer is None:
            return None
        if answer.status == 200:
            self._perhaps_again(sent)
        if fate is Fate.CUT_ANSWER:
            return replace(answer, is_cut=True)
        return answer

    def taken(self, sent: _Sent) -> _Answer:
        """Answer as a collector, and pass on later."""
        request = sent.parsed()
        with self._lock:
            self._queue += _single_points(request)
        return _Answer(200, ExportMetricsServiceResponse().SerializeToString())

    def _fate(self) -> Fate:
        with self._lock:
            if self._is_calm:
                return Fate.PASS
            (fate,) = self._random.choices(list(_FATES), weights=list(_FATES.values()))
            if fate is not Fate.PASS:
                self._happened[fate] += 1
            return fate

    def _perhaps_again(self, sent: _Sent) -> None:
        with self._lock:
            if self._is_calm:
                return
            if self._random.random() < 0.2:
                due = time.monotonic() + self._random.uniform(0, _MAX_REPLAY_S)
                self._replays.append((due, sent))
                self._happened["repeat"] += 1
            if len(self._kept) < _MAX_KEPT and self._random.random() < 0.2:
                self._kept.append(sent)

    def _forward(self, sent: _Sent, fate: Fate, send: "_Send | None" = None) -> _Answer | None:
        """Send to the bridge. None: there was no answer, whatever the bridge has done."""
        addresses = self._addresses()
        if addresses is None or fate is Fate.REFUSE:
            return None
        if fate is Fate.DELAY:
            with self._lock:
                delay_s = self._random.uniform(0, _MAX_DELAY_S)
            time.sleep(delay_s)
        reading = read(sent.parsed())
        self._books.offer(reading)
        try:
            if fate in {Fate.CUT, Fate.HANG_UP}:
                _send_and_leave(addresses.http, sent, whole=fate is Fate.HANG_UP)
                return None
            answer = (send or _post)(addresses, sent)
        except (OSError, http.client.HTTPException):
            return None
        if answer.status == 200:
            partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
            if partial.rejected_data_points:
                self._books.complain(f"the bridge refused points: {partial.error_message}")
            self._books.acknowledge(reading)
        elif answer.status in _RETRYABLE:
            with self._lock:
                self._happened[f"answered {answer.status}"] += 1
        else:
            self._books.complain(f"the bridge answered {answer.status}: {answer.body!r}")
        return answer

    # Threads.

    def _replay(self) -> None:
        while not self._is_over:
            with self._lock:
                due = [item for item in self._replays if item[0] <= time.monotonic()]
            for item in due:
                answer = self._forward(item[1], Fate.PASS)
                if answer is not None and answer.status == 200:
                    with self._lock:
                        self._replays.remove(item)
            time.sleep(_PAUSE_S)

    def _consume(self, send: "_Send") -> None:
        """One consumer of the collector's queue. The others overtake it."""
        while not self._is_over:
            points = self._some_points()
            if points:
                fate = self._fate()
                request = _merged(points, grouped=self._random.random() < 0.5)
                answer = self._forward(_Sent(request.SerializeToString()), fate, send)
                lost = answer is None or answer.status != 200 or fate is Fate.LOSE_ANSWER
                with self._lock:
                    self._in_flight -= 1
                    if lost:
                        self._queue += points
            time.sleep(_PAUSE_S / 4)

    def _some_points(self) -> Sequence[ExportMetricsServiceRequest]:
        with self._lock:
            if not self._queue:
                return []
            self._random.shuffle(self._queue)
            n = self._random.randint(1, len(self._queue)) if not self._is_calm else 1000
            points, self._queue = self._queue[:n], self._queue[n:]
            self._in_flight += 1
            return points


def _single_points(request: ExportMetricsServiceRequest) -> Iterator[ExportMetricsServiceRequest]:
    """One request for each data point, as small as one can be."""
    for resource_metrics in request.resource_metrics:
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                kind = metric.WhichOneof("data") or ""
                for point in getattr(metric, kind).data_points if kind else ():
                    single = ExportMetricsServiceRequest()
                    resource = single.resource_metrics.add(schema_url=resource_metrics.schema_url)
                    resource.resource.CopyFrom(resource_metrics.resource)
                    scope = resource.scope_metrics.add(schema_url=scope_metrics.schema_url)
                    scope.scope.CopyFrom(scope_metrics.scope)
                    alone = scope.metrics.add()
                    alone.CopyFrom(metric)
                    del getattr(alone, kind).data_points[:]
                    getattr(alone, kind).data_points.append(point)
                    yield single


def _merged(
    singles: Sequence[ExportMetricsServiceRequest], *, grouped: bool
) -> ExportMetricsServiceRequest:
    """The points as a batch: each beside its own resource, or grouped as senders do."""
    merged = ExportMetricsServiceRequest()
    places: dict[tuple[bytes, ...], Metric] = {}
    for single in singles:
        (resource,) = single.resource_metrics
        (scope,) = resource.scope_metrics
        (metric,) = scope.metrics
        kind = metric.WhichOneof("data") or ""
        place = (
            resource.resource.SerializeToString(),
            scope.scope.SerializeToString(),
            metric.name.encode(),
            # A worker's totals are cumulative, and its shares of steps are not.
            str(getattr(getattr(metric, kind), "aggregation_temporality", 0)).encode(),
        )
        if grouped and place in places:
            getattr(places[place], kind).data_points.extend(getattr(metric, kind).data_points)
        else:
            merged.MergeFrom(single)
            places[place] = merged.resource_metrics[-1].scope_metrics[-1].metrics[-1]
    return merged


def _headers(sent: _Sent) -> dict[str, str]:
    headers = {"content-type": "application/x-protobuf"}
    if sent.content_encoding:
        headers["content-encoding"] = sent.content_encoding
    return headers


_Send = Callable[[Addresses, _Sent], _Answer]


def _call(addresses: Addresses, sent: _Sent) -> _Answer:
    """Over gRPC, with the status that HTTP would have had."""
    with grpc.insecure_channel(addresses.grpc) as channel:
        export = channel.unary_unary(_EXPORT, bytes, bytes)
        try:
            return _Answer(200, export(sent.body, timeout=_TIMEOUT_S))
        except grpc.RpcError as error:
            code = error.code()
            if code in _RETRYABLE_CODES:
                return _Answer(503, b"")
            return _Answer(500, str(error).encode())


def _post(addresses: Addresses, sent: _Sent) -> _Answer:
    connection = http.client.HTTPConnection(addresses.http, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/metrics", sent.body, _headers(sent))
        response = connection.getresponse()
        return _Answer(response.status, response.read())


def _send_and_leave(address: str, sent: _Sent, *, whole: bool) -> None:
    host, _, port = address.rpartition(":")
    lines = [
        "POST /v1/metrics HTTP/1.1",
        f"host: {address}",
        f"content-length: {len(sent.body)}",
        *(f"{name}: {value}" for name, value in _headers(sent).items()),
    ]
    body = sent.body if whole else sent.body[: len(sent.body) // 2]
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a sender that is killed resets its connection."""


def _handler(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:
                self._answer(None)  # the sender was killed
                return
            if not self.path.endswith("/v1/metrics"):
                self._answer(_Answer(200, b""))
                return
            sent = _Sent(body, self.headers.get("Content-Encoding", ""))
            if self.path.startswith("/collector/"):
                self._answer(gateway.taken(sent))
            else:
                self._answer(gateway.passed_on(sent))

        def _answer(self, answer: _Answer | None) -> None:
            if answer is None or answer.is_cut:
                self.close_connection = True
            if answer is None:
                return
            head = (
                f"HTTP/1.1 {answer.status} Answer\r\n"
                "content-type: application/x-protobuf\r\n"
                f"content-length: {len(answer.body)}\r\n\r\n"
            )
            content = head.encode() + answer.body
            with contextlib.suppress(OSError):  # the sender is gone; that is its right
                self.wfile.write(content[: len(content) // 2] if answer.is_cut else content)

        def log_message(self, *_arguments: object) -> None:
            return

    return Handler
