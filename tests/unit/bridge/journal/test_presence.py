"""A journal that is gone is a problem until it is there again, and is logged once."""

import pytest

from otel_rl.bridge.journal.places import JournalPresence
from otel_rl.errors import JournalGone


def test_a_journal_is_there_until_someone_finds_it_gone() -> None:
    presence = JournalPresence()
    assert presence.problem == ""
    presence.gone(JournalGone("'journal.db' was removed."))
    assert "'journal.db' was removed." in presence.problem
    presence.there()
    assert presence.problem == ""


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    presence = JournalPresence()
    with caplog.at_level("WARNING"):
        presence.there()
        for _ in range(3):
            presence.gone(JournalGone("'journal.db' was removed."))
        for _ in range(3):
            presence.there()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
