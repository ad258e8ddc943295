"""What is known of a run beside its rows: what its processes announce, put together. Pure.

Announcements come in any order and more than once. Of two that speak of the same thing the later
one is right, by their own time, so the result is the same whatever the order. Tags are united.
"""

from collections.abc import Iterable, Mapping

from otel_rl.records import Announcement, Description, Device, ExperimentStatus, Value

__all__ = ["MAX_CONFIG_KEYS", "MAX_TAGS", "About"]

MAX_CONFIG_KEYS = 4_096
"""Top-level keys of a run's config. W&B shows a config as one table; the largest have hundreds."""

MAX_TAGS = 256
"""Of a run."""


class About:
    """The announcements of one experiment, as one. Can be pickled."""

    def __init__(self) -> None:
        # Everything with the time of the announcement that says so.
        self._config: dict[str, tuple[int, Value]] = {}
        self._texts: dict[str, tuple[int, str]] = {}
        self._status = (0, ExperimentStatus.RUNNING)
        self._tags: dict[str, None] = {}

    def add(self, announcements: Iterable[Announcement]) -> int:
        """Take in what is said.

        Returns:
            How many keys and tags there was no room for.
        """
        return sum(self._add(one) for one in announcements)

    def describe(
        self,
        so_far: ExperimentStatus | None = None,
        devices: Mapping[str, Device] | None = None,
    ) -> Description:
        """What is known.

        Args:
            so_far: How the experiment stands by what its workers do, if nobody has said that it
                has ended.
            devices: The run's GPUs, by what their keys begin with.
        """
        _, status = self._status
        if status is ExperimentStatus.RUNNING and so_far is not None:
            status = so_far
        return Description(
            {key: value for key, (_, value) in self._config.items()},
            self._text("notes"),
            tuple(self._tags),
            self._text("group"),
            self._text("job_type"),
            status,
            devices or {},
        )

    def _add(self, one: Announcement) -> int:
        if one.status is not None:
            self._status = max(self._status, (one.time_ns, one.status))
        texts = {"notes": one.notes, "group": one.group, "job_type": one.job_type}
        for name, text in texts.items():
            if text is not None:
                self._texts[name] = max(self._texts.get(name, (0, "")), (one.time_ns, text))
        left_out = 0
        for key, value in one.config.items():
            known = self._config.get(key)
            if known is None and len(self._config) >= MAX_CONFIG_KEYS:
                left_out += 1
            elif known is None or _rank(known) <= _rank((one.time_ns, value)):
                self._config[key] = (one.time_ns, value)
        for tag in one.tags:
            if tag in self._tags or len(self._tags) < MAX_TAGS:
                self._tags[tag] = None
            else:
                left_out += 1
        return left_out

    def _text(self, name: str) -> str:
        return self._texts.get(name, (0, ""))[1]


def _rank(said: tuple[int, Value]) -> tuple[int, str]:
    """Of two values that were given at one instant, the same one is right every time."""
    time_ns, value = said
    return time_ns, repr(value)
