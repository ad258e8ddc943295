"""Which attributes of a metric are part of a key."""

from otel_rl.semconv.foreign import fold


def test_span_metrics_of_two_starts_of_a_collector_have_one_key() -> None:
    name = "traces.span.metrics.duration"
    sent = {
        "collector.instance.id": "0152bfea-a75b-46bf-999e-0795728b1327",
        "http.route": "/generate",
        "service.name": "generator",
        "span.kind": "SPAN_KIND_INTERNAL",
        "span.name": "decode",
        "status.code": "STATUS_CODE_UNSET",
    }
    kept, apart = fold(name, tuple(sorted(sent.items())))
    assert [key for key, _ in kept] == ["http.route", "span.name", "status.code"]
    assert dict(kept) | dict(apart) == sent


def test_other_metrics_keep_all() -> None:
    sent = (("collector.instance.id", "a"), ("k", "b"))
    assert fold("tokens", sent) == (sent, ())
