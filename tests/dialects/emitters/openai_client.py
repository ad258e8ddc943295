"""A program that calls a model through OpenAI's client, under one of its instrumentations.

    python openai_client.py openinference | openllmetry | gen_ai | genai

The packages are openinference-instrumentation-openai, opentelemetry-instrumentation-openai,
opentelemetry-instrumentation-openai-v2, and opentelemetry-instrumentation-genai-openai, its
successor. The server that answers is a stand-in on loopback.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from threading import Thread
from typing import ClassVar

MODULES = {
    "openinference": "openinference.instrumentation.openai",
    "openllmetry": "opentelemetry.instrumentation.openai",
    "gen_ai": "opentelemetry.instrumentation.openai_v2",
    "genai": "opentelemetry.instrumentation.genai.openai",
}
CALLS = 4


class Model(BaseHTTPRequestHandler):
    """Answers every request with the same completion."""

    ANSWER: ClassVar = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "four"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    }  # fmt: skip

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(self.ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(instrumentation: str) -> None:
    """Call the model."""
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    import_module(MODULES[instrumentation]).OpenAIInstrumentor().instrument()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    import openai

    client = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.server_port}/v1")
    for _ in range(CALLS):
        messages = [{"role": "user", "content": "two and two?"}]
        client.chat.completions.create(model="tiny", messages=messages)
    tracers.shutdown()
    meters.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
