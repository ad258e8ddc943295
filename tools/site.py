"""Hooks of mkdocs for this repository's pages, which are also read as they are, on a code host.

- A link to a file outside ``docs`` leads to a page of the site that shows the file.
- The list of decisions is a page; docstrings make the reference of the Python interface.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_LANGUAGES = {".py": "python", ".go": "go", ".mjs": "javascript", ".toml": "toml", ".yaml": "yaml"}
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_MERMAID = re.compile(r"^```mermaid$.*?^```$", re.DOTALL | re.MULTILINE)
_API = """# Python

What a training program imports. [The worker](worker.md) lists variables, the other settings.

::: otel_rl
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members_order: __all__
      filters: ["!^_"]

## Tests of your own code

::: otel_rl.testing
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages: the reference, the list of decisions, and each file that pages link to."""
    files.append(File.generated(config, "api.md", content=_API))
    files.append(File.generated(config, "adr/index.md", content=_decisions(files)))
    for path in sorted(_linked(files)):
        text = (_ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            page = _MERMAID.sub("", text)  # its library would be loaded from elsewhere
        else:
            fence = f"```{_LANGUAGES.get(Path(path).suffix, 'text')}"
            page = f"# `{path}`\n\n{fence}\n{text.rstrip()}\n```\n"
        files.append(File.generated(config, _place(path), content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside ``docs`` lead to their pages."""
    source = page.file.src_uri
    directory = posixpath.join("docs", posixpath.dirname(source))
    if source.startswith("source/"):
        directory = posixpath.dirname(source.removeprefix("source/").removesuffix(".md"))

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(directory, found["path"]))
        place = path.removeprefix("docs/") if path.startswith("docs/") else _place(path)
        if (_ROOT / path).is_dir() or path == "docs":
            place = posixpath.join(place.removesuffix(".md"), "index.md")
        if files.get_file_from_path(place) is None:
            return found[0]
        there = posixpath.relpath(place, posixpath.dirname(source) or ".")
        return there + (found["anchor"] or "")

    return _LINK.sub(target, markdown)


def _linked(files: Files) -> set[str]:
    """Paths of the files outside ``docs`` that its pages link to, and that these link to."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.abs_src_path]
    found: set[str] = set()
    while pages:
        page = pages.pop()
        for link in _LINK.finditer((_ROOT / page).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link["path"]))
            if path.startswith("docs") or path in found or not (_ROOT / path).is_file():
                continue
            found.add(path)
            if path.endswith(".md"):
                pages.append(path)
    return found


def _place(path: str) -> str:
    """Where in the site the page of a file outside ``docs`` is."""
    shown = path.lstrip(".")  # a hidden file is none of the site's
    return f"source/{shown}" if path.endswith(".md") else f"source/{shown}.md"


def _decisions(files: Files) -> str:
    told = "Why it is as it is. Each decision on this list holds; a missing number was replaced."
    lines = ["# Decisions", "", told, ""]
    for file in files.documentation_pages():
        if file.src_uri.startswith("adr/") and file.abs_src_path is not None:
            (title,) = _HEADING.findall(Path(file.abs_src_path).read_text(encoding="utf-8"))[:1]
            lines.append(f"- [{title}]({posixpath.basename(file.src_uri)})")
    return "\n".join(lines) + "\n"
