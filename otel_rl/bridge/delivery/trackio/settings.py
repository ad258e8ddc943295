"""Settings of the Trackio tracker."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from otel_rl.bridge.delivery.kinds.options import parse_options
from otel_rl.errors import ConfigError
from otel_rl.redaction import redacted

__all__ = ["TOKEN_HINT", "TrackioSettings"]

_PROJECT: Final = "otel_rl"

TOKEN_HINT: Final = "Set TRACKIO_WRITE_TOKEN to the server's, or for a Space HF_TOKEN."  # noqa: S105  # no token
"""Hint beside refused credentials."""


@dataclass(frozen=True, slots=True)
class TrackioSettings:
    """Options of the Trackio tracker.

    Attributes:
        project: Name of the project; ``{project}`` in it is what the program names, else
            ``otel_rl``.
        server_url: Server, ``http://HOST:7860``. Empty for ``TRACKIO_SERVER_URL``.
        space_id: Space, ``user/space``. Empty for ``TRACKIO_SPACE_ID``, else the
            database in ``TRACKIO_DIR``.
        stall_timeout_s: Time without a new row until the run is reopened.
    """

    project: str = _PROJECT
    server_url: str = ""
    space_id: str = ""
    stall_timeout_s: float = 30.0

    @classmethod
    def parse(cls, attributes: Mapping[str, str]) -> "TrackioSettings":
        """Read the attributes of a run.

        Raises:
            ConfigError: An unknown name or a wrong value.
        """
        settings = parse_options("trackio", cls, attributes, secret_hint=TOKEN_HINT)
        project = settings.project.replace("{project}", _PROJECT)
        settings = replace(settings, project=project)
        url = settings.server_url or os.environ.get("TRACKIO_SERVER_URL", "")
        if url and urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(
                f'trackio.server_url: must start with http:// or https:// (got "{redacted(url)}").'
            )
        return settings

    def place(self, environ: Mapping[str, str]) -> str:
        """Return the server's URL or the Space; empty for the database of this machine."""
        if self.server_url or self.space_id:
            return self.server_url or self.space_id
        return environ.get("TRACKIO_SERVER_URL") or environ.get("TRACKIO_SPACE_ID") or ""
