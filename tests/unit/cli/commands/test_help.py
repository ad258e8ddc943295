"""Documentation in the terminal."""

import pytest

from otel_rl.cli.main import main


def test_a_page_is_printed_without_marks_of_its_generator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help", "operations"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("# Operations\n")
    assert "<!--" not in said.out


@pytest.mark.parametrize(
    ("topic", "told"),
    [("operation", "Did you mean operations?"), ("run", "`otel-rl COMMAND --help` explains")],
)
def test_an_unknown_topic_is_answered_with_what_there_is(
    topic: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", topic]) == 2
    error = capsys.readouterr().err
    assert f"There is no topic {topic!r}." in error
    assert told in error
