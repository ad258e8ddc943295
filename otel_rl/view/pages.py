"""Answers requests of the page: one function from a question to bytes, for any server."""

import gzip
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import orjson

from otel_rl.bridge.config import BridgeSettings
from otel_rl.dashboard.arrange import unit_words
from otel_rl.errors import ConfigError, OtelRLError
from otel_rl.redaction import redacted, shown
from otel_rl.semconv.spec import Tier
from otel_rl.view.found import Found
from otel_rl.view.journals import Journals, Progress, may_see
from otel_rl.view.parts.diagnoses import Asked, Diagnoses, Unread
from otel_rl.view.parts.health import environment, health
from otel_rl.view.parts.log import LogWanted, events, log
from otel_rl.view.parts.overview import goodput, keys_of, standing_of, step_seconds, time_of_step
from otel_rl.view.parts.rollout_index import RolloutIndex, RolloutIndices
from otel_rl.view.parts.rollouts import (
    Wanted,
    in_flight,
    one_rollout,
    prompts,
    rollouts,
)
from otel_rl.view.parts.runs import RunLines, headline, run_facts
from otel_rl.view.parts.timeline import before_and_after, step_without_spans, timeline
from otel_rl.view.parts.workers import deviations, heatmap, measurements, phases, standing
from otel_rl.view.parts.workspace import Catalogue, panel_lines, whole_series
from otel_rl.view.questions import Answer, Question
from otel_rl.view.text import label

_log = logging.getLogger(__name__)

_MAX_RUNS: Final = 200
_MAX_CATALOGUES: Final = 16
_MAX_COMPARED: Final = 16
_MAX_SIDES: Final = 16  # runs of both sides: all readers wait while their histories are read
_COMPRESSED_FROM: Final = 4_096
_EVERY_POINT: Final = 1_000_000  # of a line that is saved

# A diagnosis takes a tenth of a second for a hundred steps: one in a while is enough.
_DIAGNOSED_EVERY_S: Final = 15.0
_DIAGNOSIS_READING_S: Final = 1.0

_LOG_EVERY_NS: Final = 60_000_000_000  # an open page asks every second


class _NotFound(Exception):
    """The run, or the part of it, does not exist."""


class Pages:
    """Reads journals and answers questions about them. One thread.

    Args:
        settings: Of the bridge that writes, or wrote, the journals.
        clock_ns: Nanoseconds since the epoch.
    """

    def __init__(
        self, settings: BridgeSettings, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._settings = settings
        self._clock_ns = clock_ns
        self._journals = Journals(settings.journal_place)
        self._lines = RunLines(self._journals)
        self._rollouts = RolloutIndices()
        self._diagnoses = Diagnoses(every_s=_DIAGNOSED_EVERY_S, budget_s=_DIAGNOSIS_READING_S)
        self._catalogues: dict[tuple[str, Tier], tuple[int, Catalogue]] = {}
        # By runs and axis: when they had changed, when they were compared, and what was told.
        self._compared: dict[tuple[str, str], tuple[tuple[int, ...], int, dict[str, Any]]] = {}
        self._logged_ns: int | None = None
        self._parts: dict[str, Callable[[Found, Mapping[str, str]], Any]] = {
            "overview": self._overview,
            "panel": self._panel,
            "series": self._series,
            "diagnosis": self._diagnosis,
            "workers": self._workers,
            "timeline": self._timeline,
            "change": self._change,
            "rollouts": lambda found, query: rollouts(*self._wanted(found, query)),
            "prompts": lambda found, query: prompts(*self._wanted(found, query)),
            "rollout": self._rollout,
            "in_flight": self._in_flight,
            "log": self._log,
            "health": self._health,
            "environment": lambda found, _query: environment(found.run.description),
            "before": self._before,
        }

    def close(self) -> None:
        """Close the shared database, if there is one."""
        self._journals.close()

    def answer(self, question: Question) -> Answer:
        """Answer a question, also if it fails."""
        try:
            status, body = 200, _encoded(self._found(question))
        except _NotFound as exc:
            status, body = 404, _encoded({"error": str(exc)})
        except (ValueError, OverflowError):
            status, body = (
                400,
                _encoded({"error": "A parameter is no number."}),
            )
        except ConfigError as exc:
            status, body = 400, _encoded({"error": shown(str(exc))})
        except (OtelRLError, sqlite3.Error) as exc:
            status, body = 503, _encoded({"error": shown(str(exc))})
        except Exception as exc:  # noqa: BLE001  # other parts of the page can still be read
            return self._failed(question, exc)
        if len(body) < _COMPRESSED_FROM:
            return Answer(status, body)
        return Answer(status, gzip.compress(body, compresslevel=1), encoding="gzip")

    def _failed(self, question: Question, exc: Exception) -> Answer:
        """Log a mistake of our own, once a minute. Returns what its asker is told."""
        now_ns = self._clock_ns()
        if self._logged_ns is None or abs(now_ns - self._logged_ns) >= _LOG_EVERY_NS:
            self._logged_ns = now_ns
            _log.error("The page could not answer %s", shown(question.path), exc_info=exc)
        words = (
            f"This part of the page failed ({type(exc).__name__}), which is a mistake of otel_rl. "
            "Report it with the traceback that is in the log of this server."
        )
        return Answer(500, _encoded({"error": words}))

    def _found(self, question: Question) -> Any:
        parts = question.path.split("/")
        match parts:
            case ["revision"]:
                return {"revision": str(self._journals.revision(question.experiments))}
            case ["runs"]:
                return self._runs(question)
            case ["compare"]:
                return self._compare(question)
            case ["runs", run, part] if part in self._parts:
                return self._parts[part](self._run(run, question), question.query)
        raise _NotFound("There is no such page.")

    def _run(self, run: str, question: Question) -> Found:
        found = self._journals.run(run)
        if found is None or not may_see(found.run.key, question.experiments):
            raise _NotFound("There is no such run in the journals.")
        return found

    def _compare(self, question: Question) -> Any:
        """Return what ``otel-rl compare --json`` prints of the runs of ``a`` and those of ``b``."""
        ids = [question.query.get(side, "").split(".") for side in ("a", "b")]
        if sum(map(len, ids)) > _MAX_SIDES:
            raise ConfigError(
                f"The page compares at most {_MAX_SIDES} runs at a time.",
                hint="Choose fewer runs, or use `otel-rl compare`.",
            )
        both = [[self._run(run, question) for run in side] for side in ids]
        # Imported here, as in ``Diagnoses``: the first chart of a new process does not wait for it.
        from otel_rl.view.parts.sides import Side, Sides

        by = question.query.get("by") or "step"
        asked = str(ids), by
        changed = tuple(one.run.changed_ns for side in both for one in side)
        made = self._compared.get(asked)
        if made is not None and (
            made[0] == changed or self._clock_ns() - made[1] < _DIAGNOSED_EVERY_S * 1e9
        ):
            return made[2]
        try:
            histories = iter(self._diagnoses.histories([one for side in both for one in side]))
        except Unread as exc:
            return {"read": exc.share}
        before, after = (
            Side(
                ", ".join(str(one.run.key) for one in side),
                [one.run for one in side],
                [next(histories) for _ in side],
            )
            for side in both
        )
        told = {**Sides.of(before, after, by).as_json(), "read": 1}
        if len(self._compared) > _MAX_COMPARED:
            self._compared.clear()
        self._compared[asked] = changed, self._clock_ns(), told
        return told

    def _runs(self, question: Question) -> Any:
        found = self._journals.all()
        wanted = question.query.get("search", "").casefold()
        seen = [
            one
            for one in found
            if wanted in " ".join([str(one.run.key), *one.run.description.tags]).casefold()
            and may_see(one.run.key, question.experiments)
        ]
        lines, share = self._lines.of(seen[:_MAX_RUNS], self._clock_ns())
        return {
            "runs": lines,
            "left_out": max(0, len(seen) - _MAX_RUNS),
            "faults": [shown(fault) for fault in self._journals.faults],
            "read": share,
        }

    def _catalogue(self, found: Found, query: Mapping[str, str]) -> Catalogue:
        """Return the charts of a run: they are asked for one by one, and change seldom."""
        detail = Tier.FULL if query.get("detail") == "full" else Tier.BASIC
        known = self._catalogues.get((found.id, detail))
        if known is None or known[0] != found.run.changed_ns:
            if len(self._catalogues) > _MAX_CATALOGUES:
                self._catalogues.clear()
            known = found.run.changed_ns, Catalogue(keys_of(found), detail)
            self._catalogues[found.id, detail] = known
        return known[1]

    def _overview(self, found: Found, query: Mapping[str, str]) -> Any:
        progress = self._journals.read(found)
        data = progress.data
        newest = data if progress.share == 1 else self._journals.newest(found)
        keys, stands = keys_of(found), standing_of(found)
        return {
            **run_facts(found, stands, self._clock_ns()),
            "step": found.run.step or newest.last_step or found.run.step,  # by spans alone
            **_read_so_far(progress),
            "shown": headline(newest, keys),
            "step_s": step_seconds(newest),
            "verdict": stands.verdict,
            "cause": label(stands.cause),
            "goodput": goodput(stands),
            "sections": (catalogue := self._catalogue(found, query)).sections(data),
            "first": catalogue.first(data),
            "amounts": {
                label(key): word for key, word in catalogue.amounts.items() if key in data.series
            },
            "events": events(found, data),
            "trace_url": redacted(self._settings.rows.trace_url),
        }

    def _panel(self, found: Found, query: Mapping[str, str]) -> Any:
        panel = self._catalogue(found, query).panel(query.get("id", ""))
        if panel is None:
            raise _NotFound("There is no such chart.")
        progress = self._journals.read(found)
        lines = panel_lines(
            progress.data,
            panel,
            x=query.get("x", ""),
            first=float(query.get("first", -math.inf)),
            last=float(query.get("last", math.inf)),
            **({"most": _EVERY_POINT} if query.get("every") else {}),
        )
        return {"lines": lines, **_read_so_far(progress)}

    def _series(self, found: Found, query: Mapping[str, str]) -> Any:
        """Return one key of the run; without a key, those that can be asked for."""
        progress = self._journals.read(found)
        if key := query.get("key"):
            by_time = query.get("x") == "time"
            shown_ = whole_series(progress.data, key, by_time=by_time)
        else:
            shown_ = {"sections": self._catalogue(found, query).keys(progress.data)}
        return {**shown_, **_read_so_far(progress)}

    def _diagnosis(self, found: Found, query: Mapping[str, str]) -> Any:
        first, last = _step(query, "first"), _step(query, "last")
        asked = Asked() if first is None or last is None else Asked((first, last))
        try:
            told = self._diagnoses.of(found, asked, now_ns=self._clock_ns())
            data = self._journals.read(found).data
            causes = [
                {**cause, "since_ms": time_of_step(data, cause["since_step"])}
                for cause in told["causes"]
            ]
            return {**told, "causes": causes, "read": 1}
        except Unread as exc:
            return {
                "verdict": standing_of(found).verdict,
                "words": str(exc),
                "read": exc.share,
                "causes": [],
                "symptoms": [],
            }

    def _workers(self, found: Found, query: Mapping[str, str]) -> Any:
        progress = self._journals.read(found)
        data, now_ns = progress.data, self._clock_ns()
        units = {spec.key: unit_words(spec.unit) for spec in keys_of(found)}
        listed, others = phases(data), measurements(data, units)
        chosen = query.get("phase") or next((one["id"] for one in [*listed, *others]), "")
        return {
            "phases": listed,
            "measurements": others,
            "chosen": chosen,
            "heatmap": heatmap(data, chosen),
            "deviations": deviations(data, chosen),
            "workers": standing(found, data, now_ns),
            **_read_so_far(progress),
        }

    def _timeline(self, found: Found, query: Mapping[str, str]) -> Any:
        last = _step(query, "last")
        shown_ = timeline(found, first=_step(query, "first"), last=last)
        answer = {**shown_, "gone": None, "trace_url": redacted(self._settings.rows.trace_url)}
        if last is None or any(one["step"] == last for one in shown_["steps"]):
            return answer
        progress = self._journals.read(found)
        gone = step_without_spans(progress.data, last)
        return {**answer, "gone": gone, **_read_so_far(progress)}

    def _change(self, found: Found, query: Mapping[str, str]) -> Any:
        since = _step(query, "since")
        shown_ = None if since is None else before_and_after(found, since, _step(query, "until"))
        return shown_ or {"before": None, "after": None}

    def _wanted(self, found: Found, query: Mapping[str, str]) -> tuple[Found, RolloutIndex, Wanted]:
        wanted = msgspec.convert(dict(query), Wanted, strict=False)
        return found, self._rollouts.of(found), wanted

    def _rollout(self, found: Found, query: Mapping[str, str]) -> Any:
        told = one_rollout(found, self._rollouts.of(found), _whole(query, "number") or 0)
        if told is None:
            raise _NotFound("The journal has no such rollout any more.")
        return {**told, "trace_url": redacted(self._settings.rows.trace_url)}

    def _in_flight(self, found: Found, _query: Mapping[str, str]) -> Any:
        told = in_flight(found, self._rollouts.of(found), self._clock_ns())
        return {**told, "has_ended": not found.run.has_bridge}

    def _log(self, found: Found, query: Mapping[str, str]) -> Any:
        at_ms = float(query["at"]) if query.get("at") else None
        return log(found, LogWanted(query.get("worker", ""), query.get("search", ""), at_ms))

    def _before(self, found: Found, _query: Mapping[str, str]) -> Any:
        """Return name and settings of the run before in the experiment; None for the first."""
        of, begun_ns = found.run.key.experiment, found.run.begun_ns
        runs = (one for one in self._journals.all() if one.run.key.experiment == of)
        earlier = (one for one in runs if one.run.begun_ns < begun_ns)
        before = max(earlier, key=lambda one: one.run.begun_ns, default=None)
        if before is None:
            return None
        return {
            "name": label(str(before.run.key)),
            "environment": environment(before.run.description),
        }

    def _health(self, found: Found, _query: Mapping[str, str]) -> Any:
        progress = self._journals.read(found)
        return {
            **health(found, progress.data, keys_of(found), self._settings, self._clock_ns()),
            **_read_so_far(progress),
        }


def _encoded(found: Any) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS)


def _read_so_far(progress: Progress) -> dict[str, float]:
    return {"read": round(progress.share, 3)}


def _step(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    return int(float(text)) if text else None


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    return int(text) if text else None
