"""Reads the traces of runs out of a Jaeger, by version 3 of its query API."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import orjson
import requests

from otel_rl.bridge.decode_spans import decode_spans
from otel_rl.bridge.receive.admit import admit
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.bridge.retrace import retrace
from otel_rl.errors import RequestError, TraceStoreError
from otel_rl.records import Decoded, ExperimentKey, Signal
from otel_rl.semconv import names

__all__ = ["Jaeger"]

_MAX_TRACES: Final = 200
"""Asked for at once. If there are as many, there may be more: then for half of the time, twice."""

_SHORTEST: Final = timedelta(milliseconds=1)
"""A time in which there are so many is not halved further."""

_TIMEOUT_S: Final = 60.0

_NO_LIMIT: Final = 1 << 40
_LIMITS: Final = ReceiveLimits(
    max_messages_per_request=_NO_LIMIT,
    max_points_per_request=_NO_LIMIT,
    max_age_s=float(_NO_LIMIT),
    max_future_s=float(_NO_LIMIT),
)
"""Of an answer: it may be large, and its spans are as old as they are."""

_ADDRESS: Final = "It is the one of Jaeger's page, such as http://localhost:16686."

Json = Any  # as a Jaeger answers


class Jaeger:
    """A Jaeger that is asked.

    Args:
        url: Of its page and query API.
        lookback: How far back to look.
        max_traces: See ``_MAX_TRACES``.
    """

    def __init__(self, url: str, lookback: timedelta, *, max_traces: int = _MAX_TRACES) -> None:
        self._url = url.rstrip("/")
        self._lookback = lookback
        self._max_traces = max_traces
        self._session = requests.Session()
        self._read: set[str] = set()

    @property
    def trace_url(self) -> str:
        """Where a person sees a trace, with ``{trace_id}`` in it."""
        return f"{self._url}/trace/{{trace_id}}"

    def histories(self, experiment: str | None) -> Mapping[ExperimentKey, Sequence[bytes]]:
        """What a diagnosis goes by, of every run; the one that was heard of last comes last.

        Args:
            experiment: Of which runs; None for all.

        Raises:
            TraceStoreError: It does not answer, or not as a Jaeger does.
        """
        found: dict[ExperimentKey, list[Decoded]] = defaultdict(list)
        newest_ns: dict[ExperimentKey, int] = defaultdict(int)
        for resource_spans in self._traces(experiment):
            for key, decoded in _decoded(resource_spans):
                found[key].append(decoded)
                ends_ns = (span.end_ns for span in decoded.spans)
                newest_ns[key] = max(newest_ns[key], max(ends_ns, default=0))
        return {key: retrace(found[key]) for key in sorted(found, key=newest_ns.__getitem__)}

    def _traces(self, experiment: str | None) -> Iterator[Sequence[Json]]:
        """The new spans of each answer, as ``resourceSpans``."""
        until = datetime.now(UTC) + timedelta(minutes=10)  # by clocks that are ahead
        since = until - self._lookback
        query = {}
        if experiment is not None:
            query["query.attributes"] = json.dumps({str(names.RL_EXPERIMENT_NAME): experiment})
        for service in self._get("services", {}).get("services") or []:
            # One that has traces in common with another does not give them twice.
            yield from self._between(since, until, {"query.service_name": service, **query})

    def _between(
        self, since: datetime, until: datetime, query: Mapping[str, str]
    ) -> Iterator[Sequence[Json]]:
        asked = [(since, until)]
        while asked:
            since, until = asked.pop()
            times = {
                "query.start_time_min": _rfc3339(since),
                "query.start_time_max": _rfc3339(until),
                "query.num_traces": str(self._max_traces),
            }
            answer = self._get("traces", {**query, **times})
            spans = answer.get("result", {}).get("resourceSpans") or []
            new = [one for one in spans if _trace_ids(one) - self._read]
            traces = set().union(*map(_trace_ids, spans))
            if len(traces) >= self._max_traces and until - since > _SHORTEST:
                middle = since + (until - since) / 2
                asked += [(since, middle), (middle, until)]
                continue
            self._read |= traces
            if new:
                yield new

    def _get(self, path: str, query: Mapping[str, str]) -> Json:
        url = f"{self._url}/api/v3/{path}"
        try:
            answer = self._session.get(url, params=query, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise TraceStoreError(
                f"No Jaeger answers at {self._url} ({type(error).__name__}).", hint=_ADDRESS
            ) from error
        if answer.status_code == HTTPStatus.NOT_FOUND and path == "traces":
            return {}  # there are none
        if not answer.ok:
            raise TraceStoreError(
                f"{url} answers {answer.status_code} {answer.reason}: {answer.text[:200]}",
                hint=_ADDRESS,
            )
        try:
            return orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise TraceStoreError(f"{url} answers with no JSON.", hint=_ADDRESS) from error


def _decoded(resource_spans: Sequence[Json]) -> Iterator[tuple[ExperimentKey, Decoded]]:
    """By run, through the door that spans come to a bridge by."""
    payload = orjson.dumps({"resourceSpans": resource_spans})
    try:
        request = parse_json(Signal.TRACES, payload, max_objects=_NO_LIMIT)
        batches = admit(Signal.TRACES, request, _LIMITS, 0).batches
    except RequestError as error:
        raise TraceStoreError(f"The Jaeger's answer is no OTLP: {error}") from error
    for batch in batches:
        yield batch.experiment, decode_spans(batch)


def _trace_ids(resource_spans: Json) -> set[str]:
    return {
        span["traceId"]
        for scope_spans in resource_spans.get("scopeSpans", ())
        for span in scope_spans.get("spans", ())
    }


def _rfc3339(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
