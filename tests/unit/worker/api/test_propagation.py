"""W3C context over HTTP and gRPC, as docs/tracing.md says: what is done there is of the step."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry import propagate, trace

import otel_rl
from tests.support import plain_http

METHOD = "/reward.Reward/Score"


def traced(headers: Mapping[str, str]) -> str:
    """The trace of what a server does for a caller that has sent these headers."""
    tracer = trace.get_tracer("reward")
    with tracer.start_as_current_span("rl.reward", propagate.extract(headers)) as span:
        return f"{span.get_span_context().trace_id:032x}"


class OverHttp(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = traced(dict(self.headers.items())).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def over_grpc(_: bytes, context: grpc.ServicerContext) -> bytes:
    metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
    return traced(metadata).encode()


@pytest.fixture
def http_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OverHttp) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def grpc_address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(over_grpc)
    service, method = METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def sent() -> dict[str, str]:
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def here() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:032x}"


@pytest.mark.usefixtures("started")
def test_what_is_done_over_http_is_of_the_step(http_url: str) -> None:
    with otel_rl.step(1), otel_rl.phase("collector_wait"):
        assert plain_http.get(http_url, headers=sent(), timeout=60).text == here()


@pytest.mark.usefixtures("started")
def test_what_is_done_over_grpc_is_of_the_step(grpc_address: str) -> None:
    with grpc.insecure_channel(grpc_address) as channel, otel_rl.step(1):
        score = channel.unary_unary(METHOD, bytes, bytes)
        answer: bytes = score(b"", metadata=tuple(sent().items()), timeout=60)
        assert answer.decode() == here()
