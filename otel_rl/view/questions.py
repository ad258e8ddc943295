"""Requests of the page and their answers, as they go from a server to what reads journals."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

SETTINGS: Final = "OTEL_RL_BRIDGE__PAGE_SETTINGS"
"""Variable with the settings of ``reader``: the URL of a database is for no list of processes."""


class Question(NamedTuple):
    """A request of the page.

    Attributes:
        path: Below ``/api/``.
        query: Its parameters, each once.
        experiments: Those that the reader may see, see ``Grant``; None for all.
    """

    path: str
    query: Mapping[str, str] = {}
    experiments: Sequence[str] | None = None


class Answer(NamedTuple):
    """Answer to a question.

    Attributes:
        status: Of HTTP.
        body: Compressed by gzip if that is its encoding.
        media: Its type.
        encoding: ``gzip`` or empty.
    """

    status: int
    body: bytes
    media: str = "application/json"
    encoding: str = ""
