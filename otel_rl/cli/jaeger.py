"""Reads the traces of runs from a Jaeger, by version 3 of its query API."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import orjson
import requests

from otel_rl.bridge.diagnosis.trace_replay import retrace
from otel_rl.bridge.otlp.spans import decode_spans
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.parsing.otlp_json import parse_json
from otel_rl.bridge.receive.validation.validate import validate
from otel_rl.errors import RequestError, TraceStoreError
from otel_rl.records import Decoded, ExperimentKey, Signal
from otel_rl.semconv import names

__all__ = ["Jaeger"]

_MAX_TRACES: Final = 1000
"""Traces per query. If there are as many, there may be more: the interval is then split."""

_SHORTEST: Final = timedelta(milliseconds=1)
"""Shortest interval that is split further."""

_GLANCES: Final = (timedelta(minutes=10), timedelta(hours=1))
"""Intervals in which the newest run is searched first."""

_TIMEOUT_S: Final = 60.0

_NO_LIMIT: Final = 1 << 40
_LIMITS: Final = ReceiveLimits(
    max_messages_per_request=_NO_LIMIT,
    max_points_per_request=_NO_LIMIT,
    max_age_s=float(_NO_LIMIT),
    max_future_s=float(_NO_LIMIT),
)
"""Ingest limits for an answer: it may be large, and its spans may be old."""

_ADDRESS: Final = "It is the one of Jaeger's page, such as http://localhost:16686."

Json = Any  # a Jaeger's answer


class Jaeger:
    """Client of a Jaeger.

    Args:
        url: Of its page and query API.
        lookback: How far back to search.
        max_traces: See ``_MAX_TRACES``.
    """

    def __init__(self, url: str, lookback: timedelta, *, max_traces: int = _MAX_TRACES) -> None:
        self._url = url.rstrip("/")
        self._lookback = lookback
        self._max_traces = max_traces
        self._session = requests.Session()

    @property
    def trace_url(self) -> str:
        """Return the URL of a trace's page, with ``{trace_id}`` in it."""
        return f"{self._url}/trace/{{trace_id}}"

    def newest_run(self) -> ExperimentKey | None:
        """Return the most recently active run; None if there is none.

        Raises:
            TraceStoreError: It does not answer, or not as a Jaeger does.
        """
        for lookback in (*_GLANCES, self._lookback):
            ends_ns: dict[ExperimentKey, int] = {}
            times = min(lookback, self._lookback)
            for key, decoded in self._decoded(None, times, newest_only=True):
                end_ns = max((span.end_ns for span in decoded.spans), default=0)
                ends_ns[key] = max(end_ns, ends_ns.get(key, 0))
            if ends_ns:
                return max(ends_ns, key=ends_ns.__getitem__)
        return None

    def histories(self, experiment: str | None) -> Mapping[ExperimentKey, Sequence[bytes]]:
        """Return the history of every run.

        Args:
            experiment: Experiment of the runs; None for all.

        Raises:
            TraceStoreError: It does not answer, or not as a Jaeger does.
        """
        found: dict[ExperimentKey, list[Decoded]] = defaultdict(list)
        for key, decoded in self._decoded(experiment, self._lookback):
            found[key].append(decoded)
        return {key: retrace(parts) for key, parts in found.items()}

    def _decoded(
        self, experiment: str | None, lookback: timedelta, *, newest_only: bool = False
    ) -> Iterator[tuple[ExperimentKey, Decoded]]:
        """Yield the spans of all matching runs, in parts. Some may be repeated.

        Args:
            experiment: See ``histories``.
            lookback: From now.
            newest_only: Only some of the latest traces of each service are needed.
        """
        until = datetime.now(UTC) + timedelta(minutes=10)  # tolerates clocks that are ahead
        since = until - timedelta(minutes=10) - lookback
        query = {}
        if experiment is not None:
            query["query.attributes"] = json.dumps({str(names.RL_EXPERIMENT_NAME): experiment})
        read: set[str] = set()  # a trace of several services is returned for each of them
        for service in self._get("services", {}).get("services") or []:
            asked = [(since, until)]
            while asked:
                times = asked.pop()
                spans = self._between(*times, {"query.service_name": service, **query})
                traces = set[str]().union(*map(_trace_ids, spans))
                if len(traces) >= self._max_traces and times[1] - times[0] > _SHORTEST:
                    parting = _parting(*times, spans)
                    asked += [(times[0], parting), (parting, times[1])]
                    continue
                yield from _by_run([one for one in spans if _trace_ids(one) - read])
                read |= traces
                if newest_only and spans:  # the later half of an interval is queried first
                    break

    def _between(
        self, since: datetime, until: datetime, query: Mapping[str, str]
    ) -> Sequence[Json]:
        """Return ``resourceSpans`` of the traces in an interval, up to the limit of a query."""
        times = {
            "query.start_time_min": _rfc3339(since),
            "query.start_time_max": _rfc3339(until),
            "query.num_traces": str(self._max_traces),
        }
        answer = self._get("traces", {**query, **times})
        return answer.get("result", {}).get("resourceSpans") or []

    def _get(self, path: str, query: Mapping[str, str]) -> Json:
        url = f"{self._url}/api/v3/{path}"
        try:
            answer = self._session.get(url, params=query, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise TraceStoreError(
                f"No Jaeger answers at {self._url} ({type(error).__name__}).", hint=_ADDRESS
            ) from error
        if answer.status_code == HTTPStatus.NOT_FOUND and path == "traces":
            return {}  # no traces
        if not answer.ok:
            raise TraceStoreError(
                f"{url} answers {answer.status_code} {answer.reason}: {answer.text[:200]}",
                hint=_ADDRESS,
            )
        try:
            return orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise TraceStoreError(f"{url} does not answer with JSON.", hint=_ADDRESS) from error


def _by_run(resource_spans: Sequence[Json]) -> Iterator[tuple[ExperimentKey, Decoded]]:
    """Decode the spans by run, through the bridge's own validation."""
    payload = orjson.dumps({"resourceSpans": resource_spans})
    try:
        request = parse_json(Signal.TRACES, payload, max_objects=_NO_LIMIT)
        batches = validate(Signal.TRACES, request, _LIMITS, 0).batches
    except RequestError as error:
        raise TraceStoreError(f"Jaeger's answer is not OTLP: {error}") from error
    for batch in batches:
        yield batch.experiment, decode_spans(batch)


def _parting(since: datetime, until: datetime, resource_spans: Sequence[Json]) -> datetime:
    """Return a time before which half of the traces begin, to split unevenly filled intervals."""
    begun_ns: dict[str, int] = {}
    for one in resource_spans:
        for scope_spans in one.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                start_ns = int(span.get("startTimeUnixNano", 0))
                trace_id = span["traceId"]
                begun_ns[trace_id] = min(start_ns, begun_ns.get(trace_id, start_ns))
    median_us = sorted(begun_ns.values())[len(begun_ns) // 2] // 1000
    found = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=median_us)
    return found if since < found < until else since + (until - since) / 2


def _trace_ids(resource_spans: Json) -> set[str]:
    return {
        span["traceId"]
        for scope_spans in resource_spans.get("scopeSpans", ())
        for span in scope_spans.get("spans", ())
    }


def _rfc3339(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
