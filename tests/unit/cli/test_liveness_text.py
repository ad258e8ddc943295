from otel_rl.cli.liveness_text import in_words, troubles
from otel_rl.records import RoleStanding

ROLES = {
    "trainer": RoleStanding(expected=2, alive=2, failures=0, recovery_s=None),
    "generator": RoleStanding(expected=3, alive=2, failures=2, recovery_s=8.71),
    "reward": RoleStanding(expected=0, alive=0, failures=0, recovery_s=None),
}


def test_who_is_there_is_said_of_roles_that_somebody_is_expected_in() -> None:
    assert [*in_words(ROLES)] == [
        "generator: 2 of 3 alive, 2 failed, replaced after 8.7 s",
        "trainer: 2 of 2 alive",
    ]


def test_who_ended_without_a_goodbye_is_said_with_what_may_be_missing() -> None:
    roles = {"trainer": RoleStanding(0, 0, 0, None, silent=2)}
    said = (
        "trainer: 2 ended without an exit report, or outlived the command; up to an export "
        "interval (1 s unless set) of metrics, or what followed the command, is missing"
    )
    assert [*troubles(roles)] == [said]
    assert [*in_words(roles)] == [said]


def test_only_what_is_not_as_it_should_be_is_a_trouble() -> None:
    assert [*troubles(ROLES)] == ["generator: 1 missing, 2 failed, replaced after 8.7 s"]
