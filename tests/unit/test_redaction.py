"""What a person is shown has no secrets, and nothing that a terminal would obey."""

import pytest

from otel_rl.redaction import is_secret_name, printable, redacted, shown

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:5ec2e7@host/db",
        "http://5ec2e7@host",
        "https://user:a/5ec2e7@p@host/x",
        "host=x password=5ec2e7 dbname=y",
        "https://host/?api_key=5ec2e7&x=1",
        "authorization=Bearer%205ec2e75ec2e7",
        "Authorization: Basic 5ec2e75ec2e7==",
        PEM.replace("MIIEvQIBADAN", "5ec2e7"),
        "-----BEGIN PRIVATE KEY-----/5ec2e7",
    ],
)
def test_secrets_are_left_out(text: str) -> None:
    assert "5ec2e7" not in redacted(f"before {text}")
    assert redacted(f"before {text}").startswith("before ")


@pytest.mark.parametrize(
    "text", ["http://host:4318/v1/metrics takes connections", "mail a@b.c", "the token is unknown"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("text", ["\x1b[2J", "a\u202eb", "a\u200bb", "\x9b31m", "\r", "\udc80"])
def test_what_a_terminal_would_obey_is_escaped(text: str) -> None:
    assert printable(text).isprintable()
    assert shown(text).isprintable()


def test_lines_stay_lines_where_they_may_and_words_stay_words() -> None:
    assert shown("a\n\tb") == "a\n\tb"
    assert printable("a\nb") == "a\\nb"
    assert printable("Größe 大きさ") == "Größe 大きさ"


def test_names_of_secrets_are_known() -> None:
    secret = ["api_key", "WANDB_API_KEY", "token", "password", "client_secret", "tls.key"]
    harmless = ["project", "endpoint", "mode", "max_keys", "max_attribute_key_bytes"]
    assert all(map(is_secret_name, secret))
    assert [name for name in harmless if is_secret_name(name)] in ([], ["max_keys"])
