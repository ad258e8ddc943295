"""A run as one file to be mailed: the page with the answers in it."""

import gzip
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rl.bridge.config import BridgeSettings
from otel_rl.errors import ConfigError
from otel_rl.view.pages import Pages, Question

__all__ = ["report_html", "write_report"]

_STATIC: Final = importlib.resources.files("otel_rl.view") / "static"

# What is inside may run; nothing is loaded, and nothing is sent.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_STYLE: Final = re.compile(r'<link rel="stylesheet" href="/static/([a-z]+\.css)">')
_SCRIPT: Final = re.compile(r'<script src="/(static|api)/([a-z]+\.js)"( defer)?></script>\n')


def write_report(settings: BridgeSettings, run: str, output: Path) -> int:
    """Write the report of a run to a file. Returns its bytes.

    Args:
        settings: Say where the journals are.
        run: Its ``rl.run.id``.
        output: The file.

    Raises:
        ConfigError: There is no such run, or a journal cannot be read, or the file written.
    """
    pages = Pages(settings)
    try:
        html = report_html(pages, run).encode()
    finally:
        pages.close()
    try:
        output.write_bytes(html)
    except OSError as exc:
        raise ConfigError(f"cannot write {str(output)!r}: {exc.strerror}.") from exc
    return len(html)


def report_html(pages: Pages, run: str) -> str:
    """Return the page of a run with all that it shows: charts, timeline, workers, rollouts.

    Args:
        pages: Answers questions.
        run: Its ``rl.run.id``.

    Raises:
        ConfigError: There is no such run, or a journal cannot be read.
    """
    answers = dict(_answers(pages, run))
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


def _answers(pages: Pages, run: str) -> Iterator[tuple[str, Any]]:
    overview = _get(pages, f"runs/{run}/overview")
    while overview["read"] < 1:
        overview = _get(pages, f"runs/{run}/overview")
    yield f"runs/{run}/overview", overview
    yield "runs", {"runs": [], "faults": [], "left_out": 0, "only": run}
    for section in overview["sections"]:
        for panel in section["panels"]:
            query = {"id": panel["id"]}
            yield f"runs/{run}/panel?id={panel['id']}", _get(pages, f"runs/{run}/panel", query)
    for part in ("diagnosis", "workers", "rollouts", "health"):
        yield f"runs/{run}/{part}", _get(pages, f"runs/{run}/{part}")
    path = f"runs/{run}/timeline"
    timeline = _get(pages, path)
    yield path, timeline
    for step in {timeline.get("slowest"), timeline.get("median")} - {None}:
        query = {"first": str(step), "last": str(step)}
        yield f"{path}?first={step}&last={step}", _get(pages, path, query)


def _get(pages: Pages, path: str, query: Mapping[str, str] = {}) -> Any:
    answer = pages.answer(Question(path, query))
    found = orjson.loads(gzip.decompress(answer.body) if answer.encoding else answer.body)
    if answer.status != 200:
        raise ConfigError(str(found["error"]))
    return found


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _script(pages: Pages, found: re.Match[str]) -> str:
    if found[1] == "static":
        code = _text(found[2])
    else:
        code = gzip.decompress(pages.answer(Question(found[2])).body).decode()
    code = code.replace("</script", "<\\/script")
    return f"<script>{code}</script>"
