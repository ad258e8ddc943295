"""What a program names for its tracker's run counts where an option has room for it."""

from otel_rl.bridge.delivery.one_run.program_options import filled
from otel_rl.records import Description

NAMED = Description(project="bandit", entity="team", mode="offline")


def test_a_placeholder_is_what_the_program_names() -> None:
    options = (("entity", "{entity}"), ("mode", "{mode}"), ("project", "rl-{project}"))
    assert filled(options, NAMED) == (
        ("entity", "team"),
        ("mode", "offline"),
        ("project", "rl-bandit"),
    )


def test_an_option_without_a_placeholder_is_the_operators() -> None:
    options = (("entity", "us"), ("project", "ours"))
    assert filled(options, NAMED) == options


def test_only_the_option_of_its_name_takes_it() -> None:
    options = (("base_url", "{project}"), ("entity", "{project}"))
    assert filled(options, NAMED) == options


def test_a_run_of_another_process_is_where_that_has_it() -> None:
    options = (("attach", "run-7"), ("mode", "{mode}"), ("project", "{project}"))
    assert filled(options, NAMED) == options


def test_what_the_program_does_not_name_stays_open() -> None:
    options = (("mode", "{mode}"), ("project", "{project}"))
    assert filled(options, Description(mode="shared")) == options


def test_a_program_that_wants_to_be_online_is_where_there_is_a_key() -> None:
    assert filled((("mode", "{mode}"),), Description(mode="online")) == (("mode", "keyed"),)
