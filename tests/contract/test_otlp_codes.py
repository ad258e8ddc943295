"""The codes that a bridge answers with."""

from otel_rl.bridge.receive.answers import ANSWERS, NOT_FOUND, TOO_MANY_CONNECTIONS, UNFORESEEN

# What the specification of OTLP calls a code over HTTP, for those that the bridge sends.
# RESOURCE_EXHAUSTED is only ever said of a request that is too large: that is final, as 413 is,
# while the 429 that stands for it elsewhere would be repeated.
SENT = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "UNIMPLEMENTED": 404,
    "RESOURCE_EXHAUSTED": 413,
    "UNAVAILABLE": 503,
}


def test_each_code_is_sent_as_what_it_means_or_never() -> None:
    answers = [*ANSWERS.values(), UNFORESEEN, NOT_FOUND, TOO_MANY_CONNECTIONS]
    assert {(answer.grpc.name, answer.http) for answer in answers} == {*SENT.items()}
