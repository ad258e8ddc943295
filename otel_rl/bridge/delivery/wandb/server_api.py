"""Queries the W&B server for the state of a run.

The line count is the only confirmation: the SDK reports no upload, and stops for good, silently,
when one is answered with 401 or 404. The query is independent of the SDK, so it also detects a
stopped upload.
"""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from typing import IO, Any

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable

__all__ = ["JOURNAL_KEY", "RemoteRun", "ask", "ask_for_summary", "config_entry", "query"]

JOURNAL_KEY = "otel_rl_journal"
"""Key of the run's config that names the journal of its rows."""

_QUERY = """
query RunLineCount($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { historyLineCount logLineCount config }
  }
}
"""

_SUMMARY_QUERY = """
query RunSummary($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { summaryMetrics }
  }
}
"""

_MAX_ANSWER_BYTES = 16 << 20  # a run's config is a few kilobytes

_CHECK_KEY = "Set WANDB_API_KEY or run `wandb login --relogin`."
_CHECK_URL = "Check WANDB_BASE_URL and any proxy on the way."

# Answers that a retry does not change; W&B's own client gives up on the same ones.
_REFUSALS = {
    400: ("does not understand the question", _CHECK_URL),
    401: ("the API key is not valid", _CHECK_KEY),
    403: ("the API key may not write there", _CHECK_KEY),
    404: ("there is no W&B server", _CHECK_URL),
    405: ("there is no W&B server", _CHECK_URL),
    410: ("the run is gone", "Give the trial another name."),
    422: ("does not understand the question", _CHECK_URL),
    501: ("there is no W&B server", _CHECK_URL),
}


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """State of a run at the server.

    Attributes:
        lines: Number of its rows; 0 for an unknown run.
        journal: Journal of its rows; empty if the config does not name it.
        console_lines: Number of lines of its console.
    """

    lines: int = 0
    journal: str = ""
    console_lines: int = 0


def ask(account: Account, run_id: str, *, timeout_s: float) -> RemoteRun:
    """Query the state of a run. Raises as ``query``."""
    found = _bucket(account, run_id, "RunLineCount", _QUERY, timeout_s)
    if not found:
        return RemoteRun()
    lines = found.get("historyLineCount")
    journal = config_entry(found.get("config"), JOURNAL_KEY)
    console_lines = found.get("logLineCount")
    return RemoteRun(
        lines if isinstance(lines, int) else 0,
        journal if isinstance(journal, str) else "",
        console_lines if isinstance(console_lines, int) else 0,
    )


def ask_for_summary(account: Account, run_id: str, *, timeout_s: float) -> Mapping[str, object]:
    """Query the summary of a run, empty for an unknown one. Raises as ``query``."""
    found = _bucket(account, run_id, "RunSummary", _SUMMARY_QUERY, timeout_s)
    try:
        summary = json.loads(found.get("summaryMetrics") or "{}")
    except (TypeError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _bucket(
    account: Account, run_id: str, operation: str, text: str, timeout_s: float
) -> dict[str, Any]:
    variables = {"project": account.project, "entity": account.entity or None, "name": run_id}
    found = query(account, operation, text, variables, timeout_s=timeout_s)
    for name in ("model", "bucket"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def config_entry(config: object, key: str) -> object:
    """Return an entry of a run's config, JSON of ``{key: {"value": ...}}``; None if absent."""
    try:
        entry = json.loads(config).get(key) if isinstance(config, str) else None
    except (ValueError, AttributeError):
        return None
    return entry.get("value") if isinstance(entry, dict) else entry


def query(
    account: Account,
    operation: str,
    text: str,
    variables: Mapping[str, object],
    *,
    timeout_s: float,
) -> object:
    """Return the ``data`` of the server's answer.

    Raises:
        TrackerUnavailable: The server cannot be reached now.
        TrackerRejected: It refuses the credentials, or is no W&B server.
    """
    token = base64.b64encode(f"api:{account.api_key}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # the scheme is checked with the settings
        f"{account.base_url}/graphql",
        data=json.dumps(
            {"operationName": operation, "query": text, "variables": variables}
        ).encode(),
        headers={
            "Authorization": f"Basic {token}",
            "Content-Type": "application/json",
            "User-Agent": "otel_rl",
        },
    )
    try:
        with _opener(account).open(request, timeout=timeout_s) as response:
            answer = json.loads(response.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as exc:
        with exc:
            raise _refused(account, exc) from exc
    except ssl.SSLCertVerificationError as exc:
        raise _untrusted(account, exc) from exc
    except ValueError as exc:
        raise TrackerUnavailable(
            f"{account.base_url}: the answer is not JSON.", hint=_CHECK_URL
        ) from exc
    except (OSError, HTTPException) as exc:
        reason = getattr(exc, "reason", exc)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise _untrusted(account, reason) from exc
        raise TrackerUnavailable(
            f"{account.base_url}: cannot be reached ({reason or type(reason).__name__})."
        ) from exc
    return _read(account, answer)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the key goes to the configured server only."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        """Raise the redirect as an error."""


def _opener(account: Account) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if not account.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))


def _refused(account: Account, exc: urllib.error.HTTPError) -> TrackerError:
    if refusal := _REFUSALS.get(exc.code):
        reason, hint = refusal
        return TrackerRejected(f"{account.base_url}: {reason} (HTTP {exc.code}).", hint=hint)
    if 300 <= exc.code < 400:
        target = exc.headers.get("Location", "elsewhere")
        return TrackerRejected(
            f"{account.base_url}: points to {target!r} (HTTP {exc.code}).", hint=_CHECK_URL
        )
    return TrackerUnavailable(f"{account.base_url}: answered HTTP {exc.code}.")


def _untrusted(account: Account, exc: ssl.SSLCertVerificationError) -> TrackerRejected:
    return TrackerRejected(
        f"{account.base_url}: its certificate is not trusted ({exc.verify_message}).",
        hint="Name the authority's certificate in SSL_CERT_FILE.",
    )


def _read(account: Account, answer: object) -> object:
    if not isinstance(answer, dict):
        raise TrackerUnavailable(
            f"{account.base_url}: the answer is no JSON object.", hint=_CHECK_URL
        )
    # An error taken for "no such run" would begin the run anew.
    if errors := answer.get("errors"):
        message = f"{account.base_url}: {_message(errors)}."
        if "permission" in message.lower():
            raise TrackerRejected(message, hint=_CHECK_KEY)
        raise TrackerUnavailable(message)
    return answer.get("data")


def _message(errors: object) -> str:
    first = errors[0] if isinstance(errors, list) and errors else errors
    message = first.get("message") if isinstance(first, dict) else first
    return str(message)[:200]
