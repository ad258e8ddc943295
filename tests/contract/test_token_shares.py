"""Over either protocol: what one token uses up does not refuse another, and senders are told."""

from contextlib import ExitStack
from hashlib import sha256

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.tokens import TeamSettings
from tests.support import plain_http
from tests.support.http2 import EXPORT
from tests.support.otlp_requests import grpc_receiver, http_receiver, metrics_request

TOKENS = {name: f"token-of-{name}-sixteen-characters" for name in ("greedy", "victim")}
AUTH = tuple(
    TeamSettings(name=name, experiments=("*",), sha256=(sha256(token.encode()).hexdigest(),))
    for name, token in TOKENS.items()
)


def of_experiments(owner: str, n: int) -> bytes:
    joined = ExportMetricsServiceRequest()
    for number in range(n):
        joined.MergeFrom(metrics_request(resource={"rl.experiment.name": f"{owner}-{number}"}))
    return joined.SerializeToString()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_token_that_names_a_thousand_experiments_leaves_another_its_own(protocol: str) -> None:
    with ExitStack() as stack:
        limits = ReceiveLimits(max_experiments=100)
        receiver = stack.enter_context(
            http_receiver(limits, auth=AUTH)
            if protocol == "http"
            else grpc_receiver(limits, auth=AUTH)
        )
        channel = stack.enter_context(grpc.insecure_channel(receiver.server.address))

        def export(owner: str, n: int) -> ExportMetricsServiceResponse:
            body, authorization = of_experiments(owner, n), f"Bearer {TOKENS[owner]}"
            if protocol == "grpc":
                call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                call = channel.unary_unary(EXPORT, bytes, bytes)
                answer = call(body, timeout=60, metadata=(("authorization", authorization),))
            else:
                headers = {
                    "content-type": "application/x-protobuf",
                    "authorization": authorization,
                }
                url = receiver.url + "/v1/metrics"
                answer = plain_http.post(url, content=body, headers=headers, timeout=60).content
            return ExportMetricsServiceResponse.FromString(answer)

        partial = export("greedy", 1000).partial_success
        assert partial.rejected_data_points == 950
        assert "share_used_up" in partial.error_message
        assert "share raised" in partial.error_message
        assert not export("victim", 50).HasField("partial_success")
        assert not export("greedy", 50).HasField("partial_success")
        assert receiver.counts()["points.refused", "share_used_up"] == 950
