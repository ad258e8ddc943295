"""The bridge's side of the process that reads the page."""

import asyncio
import threading
from multiprocessing import Pipe

import orjson
import pytest

from otel_rl.bridge.config import BridgeSettings
from otel_rl.view.page_process import BridgePage
from otel_rl.view.questions import Question


@pytest.mark.parametrize(("status", "failures"), [(200, 0), (404, 0), (500, 1)])
def test_a_question_that_the_process_could_not_answer_is_counted_and_the_process_stays(
    status: int, failures: int
) -> None:
    ours, theirs = Pipe()

    def answer() -> None:
        theirs.recv_bytes()
        theirs.send_bytes(orjson.dumps([status, "application/json", ""]) + b"\n{}")

    counted: list[bool] = []
    page = BridgePage(BridgeSettings())
    page.routes(
        lambda _: None,
        wants_token=False,
        host="127.0.0.1",
        count_failure=lambda: counted.append(True),
    )
    page._process._channel = ours
    process = threading.Thread(target=answer)
    process.start()
    try:
        answered = asyncio.run(page._ask(Question("runs")))
        assert (answered.status, answered.body, len(counted)) == (status, b"{}", failures)
        assert page._process._channel is ours
    finally:
        process.join()
        page.stop()
        theirs.close()
