"""A run, or the diagnosis of it, as one file to be mailed: the page with the answers in it."""

import gzip
import importlib.resources
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from otel_rl.bridge.config import BridgeSettings
from otel_rl.dashboard.sections import ASYNC, DIAGNOSIS, STEP_TIME
from otel_rl.errors import ConfigError
from otel_rl.view.pages import Answer, Pages, Question

__all__ = ["CAUSES", "EVERYTHING", "Contents", "answer", "report_html", "write_report"]

_STATIC: Final = importlib.resources.files("otel_rl.view") / "static"

# What is inside may run; nothing is loaded, and nothing is sent.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_STYLE: Final = re.compile(r'<link rel="stylesheet" href="/static/([a-z]+\.css)">')
_SCRIPT: Final = re.compile(r'<script src="/(static|api)/([a-z]+\.js)"( defer)?></script>\n')


class Contents(NamedTuple):
    """Contents of a report.

    Attributes:
        pages: Names of its pages; the first is open.
        sections: Titles of the overview's sections with charts; None for all.
        steps: First and last step to be diagnosed; None for all.
    """

    pages: Sequence[str]
    sections: frozenset[str] | None = None
    steps: tuple[int, int] | None = None


EVERYTHING: Final = Contents(("overview", "timeline", "workers", "rollouts", "health"))
CAUSES: Final = Contents(
    ("overview", "timeline", "workers"), frozenset({STEP_TIME, ASYNC, DIAGNOSIS})
)


def write_report(
    settings: BridgeSettings,
    run: str,
    output: Path,
    contents: Contents = EVERYTHING,
    *,
    news: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the report of a run to a file. Returns its bytes.

    Args:
        settings: Say where the journals are.
        run: Its ``rl.run.id``.
        output: The file.
        contents: What it shows.
        news: Told what is being done, in words.

    Raises:
        ConfigError: There is no such run, or a journal cannot be read, or the file written.
    """
    pages = Pages(settings)
    try:
        html = report_html(pages, run, contents, news).encode()
    finally:
        pages.close()
    try:
        output.write_bytes(html)
    except OSError as exc:
        raise ConfigError(f"cannot write {str(output)!r}: {exc.strerror}.") from exc
    return len(html)


def report_html(
    pages: Pages,
    run: str,
    contents: Contents = EVERYTHING,
    news: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the page of a run with all that it shows: charts, timeline, workers, rollouts.

    Args:
        pages: Answers questions.
        run: Its ``rl.run.id``.
        contents: What it shows.
        news: Told what is being done, in words.

    Raises:
        ConfigError: There is no such run, or a journal cannot be read.
    """
    answers = dict(_answers(pages, run, contents, news))
    # No tag can begin in it.
    data = orjson.dumps(answers).decode().replace("<", "\\u003c")
    html = (_STATIC / "index.html").read_text(encoding="utf-8")
    html = _STYLE.sub(lambda found: f"<style>{_text(found[1])}</style>", html)
    # Deferred scripts run behind the body, in their order.
    scripts = [_script(pages, found) for found in _SCRIPT.finditer(html)]
    html = _SCRIPT.sub("", html)
    html = html.replace(
        "<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    )
    tail = f'<script type="application/json" id="report">{data}</script>\n' + "\n".join(scripts)
    return html.replace("</body>", f"{tail}\n</body>")


def answer(pages: Pages, question: Question) -> Answer:
    """Answer a question of the page; ``runs/<id>/report`` is the run as one HTML file.

    A history that is half read would hold up other questions, so its report is refused.
    """
    match question.path.split("/"):
        case ["runs", run, "report"]:
            overview = pages.answer(question._replace(path=f"runs/{run}/overview", query={}))
            if overview.status != 200:
                return overview
            if _found(overview)["read"] < 1:
                return _refusal("The history is still being read.")
            try:
                html = report_html(pages, run)
            except ConfigError as exc:
                return _refusal(str(exc))
            return Answer(200, gzip.compress(html.encode(), 1), "text/html", "gzip")
    return pages.answer(question)


def _refusal(why: str) -> Answer:
    return Answer(503, orjson.dumps({"error": why}))


def _answers(
    pages: Pages, run: str, contents: Contents, news: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    yield "runs", {"runs": [], "faults": [], "left_out": 0, "only": run}
    yield "pages", contents.pages
    overview = _overview(pages, run, contents, news)
    yield f"runs/{run}/overview", overview
    for section in overview["sections"]:
        for panel in section["panels"]:
            query = {"id": panel["id"]}
            news(f"drawing {panel['title']}")
            yield f"runs/{run}/panel?id={panel['id']}", _get(pages, f"runs/{run}/panel", query)
    path = f"runs/{run}/diagnosis"
    news("looking for causes")
    while (found := _get(pages, path, _range(contents.steps)))["read"] < 1:
        news(f"looking for causes, {found['read']:.0%}")
    yield path, found
    for page in ("workers", "rollouts", "health"):
        if page in contents.pages:
            yield f"runs/{run}/{page}", _get(pages, f"runs/{run}/{page}")
    path = f"runs/{run}/timeline"
    timeline = _get(pages, path)
    yield path, timeline
    for step in {timeline.get("slowest"), timeline.get("median")} - {None}:
        yield f"{path}?first={step}&last={step}", _get(pages, path, _range((step, step)))


def _overview(pages: Pages, run: str, contents: Contents, news: Callable[[str], None]) -> Any:
    overview = _get(pages, f"runs/{run}/overview")
    while overview["read"] < 1:
        news(f"reading the history, {overview['read']:.0%}")
        overview = _get(pages, f"runs/{run}/overview")
    if contents.sections is not None:
        overview["sections"] = [
            section for section in overview["sections"] if section["title"] in contents.sections
        ]
    return overview


def _range(steps: tuple[int, int] | None) -> Mapping[str, str]:
    return {} if steps is None else {"first": str(steps[0]), "last": str(steps[1])}


def _get(pages: Pages, path: str, query: Mapping[str, str] = {}) -> Any:
    answer = pages.answer(Question(path, query))
    found = _found(answer)
    if answer.status != 200:
        raise ConfigError(str(found["error"]))
    return found


def _found(answer: Answer) -> Any:
    return orjson.loads(gzip.decompress(answer.body) if answer.encoding else answer.body)


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _script(pages: Pages, found: re.Match[str]) -> str:
    if found[1] == "static":
        code = _text(found[2])
    else:
        code = gzip.decompress(pages.answer(Question(found[2])).body).decode()
    code = code.replace("</script", "<\\/script")
    return f"<script>{code}</script>"
