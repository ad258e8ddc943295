"""Asks the W&B server how many history lines of a run it has.

It is the only confirmation there is: the SDK reports no upload, and stops for good, silently, when
one is answered with 401 or 404. The query goes beside the SDK, so that it also tells of a run whose
upload has stopped.
"""

import base64
import json
import urllib.error
import urllib.request

from otel_rl.bridge.track.wandb_account import Account
from otel_rl.errors import TrackerRejected, TrackerUnavailable

__all__ = ["history_line_count"]

_QUERY = """
query RunLineCount($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { historyLineCount }
  }
}
"""

_REJECTIONS = {401: "the API key is not valid", 403: "the API key may not write there"}


def history_line_count(account: Account, run_id: str, *, timeout_s: float) -> int:
    """Number of rows that the server has of the run, 0 if it does not know it.

    Raises:
        TrackerUnavailable: The server cannot be asked now.
        TrackerRejected: The server refuses the credentials.
    """
    variables = {"project": account.project, "entity": account.entity or None, "name": run_id}
    token = base64.b64encode(f"api:{account.api_key}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # the scheme is checked with the settings
        f"{account.base_url}/graphql",
        data=json.dumps(
            {"operationName": "RunLineCount", "query": _QUERY, "variables": variables}
        ).encode(),
        headers={
            "Authorization": f"Basic {token}",
            "Content-Type": "application/json",
            "User-Agent": "otel_rl",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310  # as above
            answer = json.load(response)
    except urllib.error.HTTPError as exc:
        if reason := _REJECTIONS.get(exc.code):
            raise TrackerRejected(
                f"{account.base_url}: {reason} (HTTP {exc.code}).",
                hint="Set WANDB_API_KEY or run `wandb login --relogin`.",
            ) from exc
        raise TrackerUnavailable(f"{account.base_url}: answered HTTP {exc.code}.") from exc
    except (OSError, ValueError) as exc:
        raise TrackerUnavailable(f"{account.base_url}: cannot be reached ({exc}).") from exc
    return _line_count(answer)


def _line_count(answer: object) -> int:
    """Read ``data.model.bucket.historyLineCount``; each level may be null for "no such thing"."""
    for name in ("data", "model", "bucket", "historyLineCount"):
        if not isinstance(answer, dict):
            return 0
        answer = answer.get(name)
    return answer if isinstance(answer, int) else 0
