import pytest

from otel_rl.bridge.bridge import Left
from otel_rl.cli.embedded_bridge import left_in_words


@pytest.mark.parametrize(
    ("left", "seconds", "words"),
    [
        (Left(0, 0), 9.0, "closing the runs, for at most 9 s"),
        (Left(7, 0), 9.0, "7 requests left, for at most 9 s"),
        (Left(0, 1), 59.4, "1 row left, for at most 59 s"),
        (Left(0, 1200), 290.0, "1200 rows left, for at most 4 min 50 s"),
        (Left(0, 1, "no route"), 9.0, "1 row left, for at most 9 s: no route"),
        (Left(2, 30), -1.0, "2 requests and 30 rows left, for at most 0 s"),
    ],
)
def test_what_is_left_to_write_is_said_in_words(left: Left, seconds: float, words: str) -> None:
    assert left_in_words(left, seconds) == words
