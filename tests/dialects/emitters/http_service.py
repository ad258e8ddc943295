"""HTTP services and their clients, instrumented by OpenTelemetry.

It needs ``opentelemetry-instrumentation-{fastapi,requests,httpx}``. The first half of the calls is
under the older conventions for HTTP, the second half under the stable ones.
"""

import os
import subprocess
import sys
import threading
import time

SERVERS, CALLS = 3, 20


def calls() -> None:
    """Call each server on each route with each client."""
    import httpx
    import requests
    import uvicorn
    from fastapi import FastAPI
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    metrics.set_meter_provider(provider)
    app = FastAPI()
    app.get("/items/{number}")(lambda number: {"number": number})
    app.post("/generate")(lambda: {"text": ""})
    FastAPIInstrumentor.instrument_app(app, exclude_spans=["receive", "send"])
    RequestsInstrumentor().instrument()
    HTTPXClientInstrumentor().instrument()
    servers = [
        uvicorn.Server(uvicorn.Config(app, port=18100 + n, log_level="warning"))
        for n in range(SERVERS)
    ]
    threads = [threading.Thread(target=server.run) for server in servers]
    for thread in threads:
        thread.start()
    while not all(server.started for server in servers):
        time.sleep(0.01)
    for n in range(SERVERS):
        for number in range(CALLS):
            for client in (requests, httpx):
                base = f"http://127.0.0.1:{18100 + n}"
                client.get(f"{base}/items/{number}", timeout=10)
                client.post(f"{base}/generate", timeout=10)
                client.get(f"{base}/missing/{number}", timeout=10)
    for server in servers:
        server.should_exit = True
    for thread in threads:
        thread.join()
    provider.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        calls()
    else:
        for opt_in in ("", "http"):
            named = f"rl.experiment.name=http,service.name=service{opt_in}"
            environment = {
                "OTEL_SEMCONV_STABILITY_OPT_IN": opt_in,
                "OTEL_RESOURCE_ATTRIBUTES": named,
            }
            command = [sys.executable, __file__, "calls"]
            subprocess.run(command, env=os.environ | environment, check=True)
