"""Asks the W&B server which rows of a run it has.

The line count is the only confirmation: the SDK reports no upload, and stops for good, silently,
when an upload is answered with 401 or 404. The query is independent of the SDK, so it also detects
a stopped upload.
"""

import base64
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from email.message import Message
from http.client import HTTPException
from typing import IO, Any, Final, NamedTuple

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.errors import TrackerError, TrackerRejected, TrackerUnavailable

_log = logging.getLogger(__name__)

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

_NOTES_QUERY = """
query RunNotes($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { id notes }
  }
}
"""

_NOTES_MUTATION = """
mutation UpsertBucket($id: String!, $notes: String) {
  upsertBucket(input: {id: $id, notes: $notes}) { bucket { id } }
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

_QUERY_TIMEOUT_S: Final = 10.0  # for one query of the server; it is repeated
_SETTLE_S: Final = 1.0  # an answer from a replica of the server's database may be this old
_POLL_S: Final = 0.5  # between two queries of a waiting call


class RemoteRun(NamedTuple):
    """State of a run at the server.

    Attributes:
        rows: Number of lines of the run's history; 0 for an unknown run.
        journal: Identity of the rows' journal; empty if the config does not name it.
        console: Number of lines of the run's console.
    """

    rows: int = 0
    journal: str = ""
    console: int = 0


def ask(account: Account, run_id: str, *, timeout_s: float = _QUERY_TIMEOUT_S) -> RemoteRun:
    """Query the state of a run. Raises the errors of ``query``."""
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


def ask_for_summary(account: Account, run_id: str) -> Mapping[str, object]:
    """Query the summary of a run, empty for an unknown run. Raises the errors of ``query``."""
    found = _bucket(account, run_id, "RunSummary", _SUMMARY_QUERY, _QUERY_TIMEOUT_S)
    try:
        summary = json.loads(found.get("summaryMetrics") or "{}")
    except (TypeError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def set_notes(account: Account, run_id: str, notes: str, *, instead_of: Collection[str]) -> None:
    """Set a run's notes at the server if they are ``instead_of``.

    Raises the errors of ``query``.
    """
    found = _bucket(account, run_id, "RunNotes", _NOTES_QUERY, _QUERY_TIMEOUT_S)
    if found and (found.get("notes") or "") in instead_of:
        query(account, "UpsertBucket", _NOTES_MUTATION, {"id": found.get("id"), "notes": notes})


def _bucket(
    account: Account, run_id: str, operation: str, text: str, timeout_s: float
) -> dict[str, Any]:
    variables = {"project": account.project, "entity": account.entity or None, "name": run_id}
    found = dig(query(account, operation, text, variables, timeout_s=timeout_s), "model", "bucket")
    return found if isinstance(found, dict) else {}


def dig(found: object, *names: str) -> object:
    """Return a part of an answer; None if the answer has no such part."""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


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
    timeout_s: float = _QUERY_TIMEOUT_S,
) -> object:
    """Return the ``data`` of the server's answer.

    Raises:
        TrackerUnavailable: The server cannot be reached now.
        TrackerRejected: The server refuses the credentials, or is not a W&B server.
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
    """Refuses redirects, so that the key goes to the configured server only."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None: ...


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


class RunOnServer:
    """The server's answers about one run, which only this journal may continue."""

    def __init__(self, account: Account, run_id: str, journal: str) -> None:
        self._account = account
        self._run_id = run_id
        self._journal = journal

    def rows(self) -> int:
        return ask(self._account, self._run_id).rows

    def settled(self) -> RemoteRun:
        """Return the run's state before `init`, taken so early that no later answer can be lower.

        The SDK numbers rows from one answer of the server and places them by another. If an upload
        of a killed writer lands in between, a row would take the line of an earlier one. So the
        line counts are queried long enough before `init`, and again long enough after it: if both
        are equal, so were the answers to `init`. The same holds for the lines of the console.

        Raises:
            TrackerRejected: The run has rows of another journal, which must not be continued.
            TrackerUnavailable: The run still takes late uploads.
        """
        found = self._found()
        if (found.rows or found.console) and not self.is_settled_at(found):
            raise TrackerUnavailable(f"The W&B run {self._run_id} still takes late uploads.")
        return found

    def is_settled_at(self, state: RemoteRun) -> bool:
        """Query again after a while, and return whether the line counts are the same."""
        time.sleep(_SETTLE_S)
        found = self._found()
        return (found.rows, found.console) == (state.rows, state.console)

    def summary(self) -> Mapping[str, object]:
        """Return the run's summary; empty, with a warning, if the server does not answer."""
        try:
            return ask_for_summary(self._account, self._run_id)
        except TrackerError as exc:  # the rows are worth more than the summary
            _log.warning("The summary of the W&B run %s begins anew: %s", self._run_id, exc)
            return {}

    def _found(self) -> RemoteRun:
        found = ask(self._account, self._run_id)
        if found.rows and self._journal and found.journal != self._journal:
            raise TrackerRejected(
                f"The W&B run {self._run_id} has {found.rows} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )
        return found


class Upload:
    """Rows of one opening of a run, between the SDK and the server.

    The SDK reports no upload, and an upload that is answered with 401 or 404 stops for good,
    silently. So this class queries the server.

    Args:
        start: All rows below it are at the server.
        stall_timeout_s: Longest time without progress at the server while rows are pending.

    Attributes:
        next_row: All rows below it were given to the SDK.
        safe_row: All rows below it are at the server.
    """

    def __init__(self, run_id: str, start: int, *, stall_timeout_s: float) -> None:
        self.next_row = self.safe_row = start
        self._run_id = run_id
        self._stall_timeout_s = stall_timeout_s
        # Time since which a row is missing at the server.
        self._waiting_since = 0.0

    def begin(self) -> None:
        if self.safe_row == self.next_row:
            self._waiting_since = time.monotonic()

    def confirm(self, ask: Callable[[], int]) -> int:
        """Return the number of the first row that the server does not have.

        Raises:
            TrackerUnavailable: The server has taken no row for too long.
            TrackerRejected: The server refuses the credentials.
        """
        now = time.monotonic()
        try:
            row = ask()
        except TrackerUnavailable as exc:
            # wandb-core keeps the rows and retries by itself; query again.
            row, reason = self.safe_row, str(exc)
        else:
            reason = "Its answers show no error."
        if row > self.next_row:
            raise TrackerUnavailable(
                f"The W&B run {self._run_id} has {row} lines after {self.next_row} rows.",
                hint="Something else writes to it. Give the trial another name.",
            )
        if row > self.safe_row or row == self.next_row:
            self.safe_row, self._waiting_since = row, now
        elif now - self._waiting_since > self._stall_timeout_s:
            raise TrackerUnavailable(
                f"W&B has taken no row of run {self._run_id} for "
                f"{now - self._waiting_since:.0f} s ({self.next_row - row} are waiting). {reason}"
            )
        return self.safe_row

    def wait(self, ask: Callable[[], int], *, timeout_s: float = float("inf")) -> int:
        """Call ``confirm`` until the server has all rows, or the timeout has passed."""
        deadline = time.monotonic() + timeout_s
        while self.confirm(ask) < self.next_row and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.safe_row
