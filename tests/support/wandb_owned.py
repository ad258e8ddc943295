"""A W&B run in shared mode on the stand-in server, without the SDK."""

import json
import urllib.request

from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.shared import Marks
from tests.support.wandb_server import API_KEY, WandbServer

MARK = "otel_rl/row/mine"
SHARED = {"X-WANDB-USE-ASYNC-FILESTREAM": "true"}
CONFIG = json.dumps({"_wandb": {"value": {"t": {"3": [14, 67]}}}})


class Owned:
    """A run in shared mode, to which lines can be added, by clients of ours and of its owner."""

    def __init__(self, server: WandbServer, name: str, *, config: str = CONFIG) -> None:
        self._server = server
        self._name = name
        self._sent = 0
        self.account = Account(
            online=True,
            base_url=server.base_url,
            project="theirs",
            entity="",
            api_key=API_KEY,
            attached_run=name,
        )
        variables = {"name": name, "project": "theirs", "config": config}
        query = "mutation UpsertBucket { x }"
        self._post("/graphql", {"query": query, "variables": variables}, "X-WANDB-CLIENT-ID")

    def add(self, *numbers: int | None) -> None:
        """Lines with these row numbers; None for one of the owner's."""
        lines = [json.dumps({"x": 1} if n is None else {MARK: n}) for n in numbers]
        chunk = {"wandb-history.jsonl": {"offset": self._sent, "content": lines}}
        self._sent += len(lines)
        path = f"/files/test-entity/theirs/{self._name}/file_stream"
        self._post(path, {"files": chunk}, "X-WANDB-ASYNC-CLIENT-ID")

    def marks(self, *, row: int = 0, step: int = 0) -> Marks:
        return Marks(self.account, MARK, row=row, step=step)

    def _post(self, path: str, content: object, client: str) -> None:
        headers = {**SHARED, client: "one", "Content-Type": "application/json"}
        request = urllib.request.Request(
            self._server.base_url + path, json.dumps(content).encode(), headers
        )
        urllib.request.urlopen(request, timeout=120).close()
