"""A run, or the diagnosis of it, as one file to be mailed: the page with the answers in it."""

import gzip
import importlib.resources
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

import orjson

from otel_rl.bridge.config import BridgeSettings
from otel_rl.dashboard.sections import ASYNC, DIAGNOSIS, STEP_TIME
from otel_rl.errors import ConfigError
from otel_rl.view.questions import Answer, Question

if TYPE_CHECKING:  # a server makes reports, and reads no journals itself
    from otel_rl.diagnose.compare import Limit
    from otel_rl.view.pages import Pages
    from otel_rl.view.parts.sides import Sides

_Part: TypeAlias = Generator[Question, Answer, Any]
"""Yields a question of the page, is sent its answer, and returns what it has made of them."""

_STATIC: Final = importlib.resources.files("otel_rl.view") / "static"

# What is inside may run; nothing is loaded, and nothing is sent.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_MOST_ASKED: Final = 2_000
"""Questions of one page, each of which reads on for a fraction of a second."""

_SHOWN_CAUSES: Final = 3
"""Causes whose evidence is in a report."""

_STYLE: Final = re.compile(r'<link rel="stylesheet" href="/static/([a-z]+\.css)">')
_SCRIPT: Final = re.compile(r'<script src="/static/([a-z]+\.js)"( defer)?></script>\n')


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


EVERYTHING: Final = Contents(("overview", "timeline", "workers", "rollouts", "log", "health"))
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
    from otel_rl.view.pages import Pages

    pages = Pages(settings)
    try:
        html = report_html(pages, run, contents, news)
    finally:
        pages.close()
    return _written(html, output)


def report_html(
    pages: "Pages",
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
    steps = report_answers(run, contents, news)
    question = next(steps)
    while True:
        try:
            question = steps.send(pages.answer(question))
        except StopIteration as end:
            return one_file(end.value)


def write_comparison(sides: "Sides", broken: "Iterable[Limit]", output: Path) -> int:
    """Write the page of two sides to a file. Returns its bytes.

    Args:
        sides: What is shown, with the curves of the first measures.
        broken: Limits that do not hold.
        output: The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    answer = {**sides.as_json(broken), "curves": sides.curves()}
    answers = {"pages": ["compare"], "compare": answer, "made_ms": time.time_ns() // 1_000_000}
    return _written(one_file(answers, has_charts=False), output)


def _written(html: str, output: Path) -> int:
    content = html.encode()
    try:
        output.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"cannot write {str(output)!r}: {exc.strerror}.") from exc
    return len(content)


def one_file(answers: Mapping[str, Any], *, has_charts: bool = True) -> str:
    """Return the page with its style, its scripts and the answers in it.

    Args:
        answers: By path, as ``report_answers`` finds them.
        has_charts: Whether it needs the code of charts.
    """
    # No tag can begin in it.
    data = orjson.dumps(answers).decode().replace("<", "\\u003c")
    html = (_STATIC / "index.html").read_text(encoding="utf-8")
    html = _STYLE.sub(lambda found: f"<style>{_text(found[1])}</style>", html)
    # Deferred scripts run behind the body, in their order.
    names = [found[1] for found in _SCRIPT.finditer(html)]
    codes = [_text(name) for name in (*names, *(["plotly.js"] if has_charts else []))]
    scripts = [
        "<script>{}</script>".format(code.replace("</script", "<\\/script")) for code in codes
    ]
    html = _SCRIPT.sub("", html)
    html = html.replace(
        "<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    )
    tail = f'<script type="application/json" id="report">{data}</script>\n' + "\n".join(scripts)
    return html.replace("</body>", f"{tail}\n</body>")


def report_answers(
    run: str, contents: Contents = EVERYTHING, news: Callable[[str], None] = lambda _: None
) -> _Part:
    """Ask all questions of the page one by one, so that others can be answered in between.

    Args:
        run: Its ``rl.run.id``.
        contents: What the report shows.
        news: Told what is being done, in words.

    Returns:
        A generator of questions, which is sent their answers. It returns them by path.

    Raises:
        ConfigError: There is no such run, or a journal cannot be read.
    """
    answers: dict[str, Any] = {
        "runs": {"runs": [], "faults": [], "left_out": 0, "only": run},
        "pages": contents.pages,
    }

    def keep(part: str, query: Mapping[str, str] = {}, doing: str = "") -> _Part:
        path = f"runs/{run}/{part}"
        found = answers[_address(path, query)] = yield from _get(path, query, news, doing)
        return found

    overview = yield from keep("overview", doing="reading the history")
    if contents.sections is not None:
        overview["sections"] = [
            section for section in overview["sections"] if section["title"] in contents.sections
        ]
    for section in overview["sections"]:
        for panel in section["panels"]:
            yield from keep("panel", {"id": panel["id"]}, f"drawing {panel['title']}")
    path = f"runs/{run}/diagnosis"  # the page asks for no steps of it
    found = yield from _get(path, _range(contents.steps), news, "looking for causes")
    answers[path] = found
    for part, query in _evidence(found["causes"]):
        yield from keep(part, query)
    yield from keep("environment")
    answers["before"] = yield from _get(f"runs/{run}/before")
    for page in ("workers", "rollouts", "prompts", "log", "health"):
        if page in contents.pages or (page == "prompts" and "rollouts" in contents.pages):
            yield from keep(page)
    timeline = yield from keep("timeline")
    for step in {timeline.get("slowest"), timeline.get("median")} - {None}:
        yield from keep("timeline", _range((step, step)))
    return answers


def _evidence(causes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what the page asks for to show the evidence of causes."""
    for cause in causes[:_SHOWN_CAUSES]:
        keys = [one["key"] for one in cause["evidence"] if one["key"]]
        if cause["phase"] and cause["role"]:
            yield "workers", {"phase": f"{cause['role']}/{cause['phase']}"}
        for key in dict.fromkeys(keys):
            yield "series", {"key": key}
        if cause["since_step"] is not None:
            steps = {"since": cause["since_step"], "until": cause["until_step"]}
            known = {name: str(step) for name, step in steps.items() if step is not None}
            yield "change", known


def _address(path: str, query: Mapping[str, str]) -> str:
    """Return the name of an answer in a report, as the page builds it."""
    return f"{path}?{urlencode(sorted(query.items()))}" if query else path


def _range(steps: tuple[int, int] | None) -> Mapping[str, str]:
    return {} if steps is None else {"first": str(steps[0]), "last": str(steps[1])}


def _get(
    path: str,
    query: Mapping[str, str] = {},
    news: Callable[[str], None] = lambda _: None,
    doing: str = "",
) -> _Part:
    """Return a page of the whole run: its history may have left the memory, and is read again."""
    if doing:
        news(doing)
    for _ in range(_MOST_ASKED):
        answer = yield Question(path, query)
        found = orjson.loads(_body(answer))
        if answer.status != 200:
            raise ConfigError(str(found["error"]))
        share = 1 if found is None else found.get("read", 1)
        if share >= 1:
            return found
        if doing:
            news(f"{doing}, {share:.0%}")
    raise ConfigError("The history of the run does not stay in memory: others read as long ones.")


def _body(answer: Answer) -> bytes:
    return gzip.decompress(answer.body) if answer.encoding else answer.body


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
