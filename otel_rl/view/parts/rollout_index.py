"""Finished rollouts of a run by identity, read from the journal as it grows.

The index holds heads, some 500 bytes a rollout; texts are read for what is shown. Records of one
rollout become one: those with the same id and attempt, unless each has an answer of its own.
"""

import re
import time
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from otel_rl.bridge.journal.interface import Connection, checksum
from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.reader import first_history, read_history
from otel_rl.bridge.journal.state import StateRefused
from otel_rl.bridge.rows.rollouts import Head, Part, parts_of
from otel_rl.view.found import Found

MAX_HEADS: Final = 300_000
"""Of all runs that are looked at: some 150 MB. Of a longer run, the newest are found."""

_READING_S: Final = 0.5  # an answer is not held up for longer; the next one reads on
_SEARCHES: Final = 4  # that go on, each of some 20 MB at most: as many readers may look at once
_RECORDS: Final = 16  # that are read at once, up to some MB each

_NUMBER: Final = re.compile(r"[\d.e+-]+|nan|inf|true|false|none")

_IN_PART: Final = 8  # bits of the place in a part, see ``rows.rollouts``
_IN_RECORD: Final = 20  # bits of the part and the place in it


class _Search:
    """What a search has found so far.

    Attributes:
        searched: Parts that were searched.
        places: Of records with the text.
    """

    def __init__(self) -> None:
        self.searched: set[int] = set()
        self.places: set[int] = set()


class Entry(NamedTuple):
    """A rollout.

    Attributes:
        number: Identifies it in the journal.
        head: Of all its records.
    """

    number: int
    head: Head


class RolloutIndex:
    """Rollouts of one run. One thread.

    Attributes:
        left_out: Those for which there was no room; the oldest.
        damaged: Records that could not be read.
        version: Changes whenever a rollout does.
        choices: Words of tables, outcomes and environments that there are.
        kept: What the reader of the index has made of it last.
    """

    def __init__(self) -> None:
        self.version = 0
        self._forget()

    def _forget(self) -> None:
        self._first = self._last = 0
        self._heads: list[Head] = []
        self._numbers = array("q")
        self._further: dict[int, list[int]] = {}  # by number: records that add to it
        self._overruled: set[int] = set()  # records of the bridge on what others tell better
        self._by_identity: dict[tuple[str, int], int] = {}  # the place of the newest
        self._parts: list[int] = []
        self._words: dict[str, str] = {}
        self._searches: OrderedDict[str, _Search] = OrderedDict()  # the last one was asked for last
        self._entries: list[Entry] | None = None
        self.choices: dict[str, set[str]] = defaultdict(set)
        self.kept: object = None
        self.version += 1
        self.left_out = self.damaged = 0

    def __len__(self) -> int:
        return len(self._heads)

    def entries(self) -> Sequence[Entry]:
        """Return all, the newest first."""
        if self._entries is None:
            self._entries = [*map(Entry, reversed(self._numbers), reversed(self._heads))]
        return self._entries

    def read_on(self, connection: Connection, run: str) -> float:
        """Read what is new, for a moment. Returns the share that was read, from 0 to 1."""
        ends_s = time.monotonic() + _READING_S
        first = first_history(connection, run, Log.ROLLOUTS)
        if first > self._first and self._first:
            self._forget()  # the bridge has dropped the oldest, which are many
        self._first = first
        while some := read_history(
            connection, run, after=self._last, limit=_RECORDS, kind=Log.ROLLOUTS
        ):
            for number, body in some:
                self._last = number
                self._entries = None
                self.version += 1
                self._add_record(number, body)
                if time.monotonic() > ends_s:
                    return self._share(connection, run)
        return 1.0

    def _share(self, connection: Connection, run: str) -> float:
        ((read, of),) = connection.execute(
            "SELECT COALESCE(SUM(number <= ?), 0), COUNT(*) FROM log WHERE run_id = ? AND kind = ?",
            (self._last, run, str(Log.ROLLOUTS)),
        ).fetchall()
        return min(0.999, int(read) / max(1, int(of))) if read < of else 1.0

    def find(self, connection: Connection, run: str, text: str) -> tuple[set[int], float]:
        """Return the numbers of those with a text in any field, and the share that was searched.

        Goes on where the last call with the same text has stopped; the newest come first.
        """
        search = self._searches.setdefault(text, _Search())
        self._searches.move_to_end(text)
        if len(self._searches) > _SEARCHES:
            self._searches.popitem(last=False)
        ends_s = time.monotonic() + _READING_S
        waiting: dict[int, list[int]] = defaultdict(list)
        for part in reversed(self._parts):
            if part not in search.searched:
                waiting[part >> (_IN_RECORD - _IN_PART)].append(part)
        left = sum(map(len, waiting.values()))
        for number, of_record in waiting.items():
            for part, found in self._stored(connection, run, number):
                if part in of_record:
                    search.places.update(_with_text(part, found, text))
                    search.searched.add(part)
                    left -= 1
            search.searched.update(of_record)
            if time.monotonic() > ends_s:
                break
        workers = {name for name in self._words if "/" in name and text in name.casefold()}
        places = search.places - self._overruled
        numbers = {
            number
            for number, head in zip(self._numbers, self._heads, strict=True)
            if number in places
            or (workers and head.worker in workers)
            or not places.isdisjoint(self._further.get(number, ()))
        }
        return numbers, 1.0 if left <= 0 else max(0.0, 0.999 - left / max(1, len(self._parts)))

    def fields(
        self, connection: Connection, run: str, numbers: Iterable[int]
    ) -> Mapping[int, Mapping[str, Any]]:
        """Return the fields of rollouts, of all their records, by their numbers."""
        wanted = {
            number: [
                one
                for one in (number, *self._further.get(number, ()))
                if one not in self._overruled
            ]
            for number in numbers
        }
        records: dict[int, set[int]] = defaultdict(set)
        for places in wanted.values():
            for place in places:
                records[place >> _IN_RECORD].add(place)
        found: dict[int, Mapping[str, Any]] = {}
        for number, of_record in records.items():
            for part, stored in self._stored(connection, run, number):
                of_part = [one for one in of_record if one >> _IN_PART == part]
                if of_part:
                    texts = _texts(stored)
                    for place in of_part:
                        at = place & ((1 << _IN_PART) - 1)
                        found[place] = texts[at] if at < len(texts) else {}
        return {
            number: {key: value for one in places for key, value in found.get(one, {}).items()}
            for number, places in wanted.items()
        }

    def entry(self, number: int) -> Entry | None:
        """Return the rollout of a number."""
        try:
            place = self._numbers.index(number)
        except ValueError:
            return None
        return Entry(number, self._heads[place])

    def _add_record(self, number: int, body: bytes | None) -> None:
        if body is None:
            self.damaged += 1
            return
        try:
            for part, stored in enumerate(parts_of(body)):
                base = (number << (_IN_RECORD - _IN_PART)) + part
                self._parts.append(base)
                for place, head in enumerate(stored.heads):
                    self._add(head, (base << _IN_PART) + place)
        except StateRefused:
            self.damaged += 1
        if len(self._heads) > MAX_HEADS:
            self._leave_out(len(self._heads) - MAX_HEADS * 9 // 10)

    def _add(self, head: Head, number: int) -> None:
        word = self._words.setdefault
        head.worker = word(head.worker, head.worker)
        head.group = word(head.group, head.group)
        head.beginning = word(head.beginning, head.beginning)
        head.table = word(head.table, head.table)
        head.outcome = word(head.outcome, head.outcome)
        head.environment = word(head.environment, head.environment)
        if head.id:
            identity = head.id, head.attempt
            place = self._by_identity.get(identity)
            if place is not None and _is_same(self._heads[place], head):
                self._join(place, head, number)
                return
            self._by_identity[identity] = len(self._heads)
        self._choose(head)
        self._heads.append(head)
        self._numbers.append(number)

    def _join(self, place: int, head: Head, number: int) -> None:
        """Add a record to a rollout. The bridge's own word counts until there is another."""
        known, first = self._heads[place], self._numbers[place]
        if _is_of_bridge(head) and not _is_of_bridge(known):
            return
        further = self._further.setdefault(first, [])
        if _is_of_bridge(known):
            self._overruled.update((first, *further))
        else:
            head = _joined(known, head)
        further.append(number)
        self._heads[place] = head
        self._choose(head)

    def _choose(self, head: Head) -> None:
        self.choices["table"].add(head.table)
        self.choices["outcome"].add(head.outcome)
        self.choices["environment"].add(head.environment)

    def _leave_out(self, oldest: int) -> None:
        for number in self._numbers[:oldest]:
            self._overruled.difference_update((number, *self._further.pop(number, ())))
        del self._heads[:oldest], self._numbers[:oldest]
        self.left_out += oldest
        self._by_identity = {
            identity: place - oldest
            for identity, place in self._by_identity.items()
            if place >= oldest
        }

    @staticmethod
    def _stored(connection: Connection, run: str, number: int) -> Iterator[tuple[int, Part]]:
        """Yield the parts of a record, with their numbers; none of a damaged one."""
        kind = str(Log.ROLLOUTS)
        found = connection.execute(
            "SELECT body, crc FROM log WHERE number = ? AND run_id = ? AND kind = ?",
            (number, run, kind),
        ).fetchone()
        if found is None or checksum(found[0], run, kind) != found[1]:
            return
        try:
            for part, stored in enumerate(parts_of(bytes(found[0]))):
                yield (number << (_IN_RECORD - _IN_PART)) + part, stored
        except StateRefused:
            return


class RolloutIndices:
    """The indices of the runs that are looked at. One thread."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, RolloutIndex] = OrderedDict()

    def of(self, found: Found) -> RolloutIndex:
        """Return the index of a run; the ones that were not asked for longest make room."""
        index = self._of.setdefault(found.id, RolloutIndex())
        self._of.move_to_end(found.id)
        while len(self._of) > 1 and sum(map(len, self._of.values())) > MAX_HEADS:
            self._of.popitem(last=False)
        return index


def _is_same(known: Head, new: Head) -> bool:
    """Return whether two records with one identity are of one rollout.

    Programs also log the row of a data set as ``id``: then each answer is another rollout.
    """
    if not known.answer or not new.answer:
        return True
    return known.answer == new.answer and known.step == new.step


def _is_of_bridge(head: Head) -> bool:
    """Return whether it is the bridge's own word on a rollout whose worker was lost."""
    return not head.table


def _joined(known: Head, new: Head) -> Head:
    """Return a head of both records: what the later one says counts."""
    told = {
        name: value
        for name in ("reward", "advantage", "outcome", "reason", "environment", "group")
        if (value := getattr(new, name)) not in {None, ""}
    }
    if new.prompt and not known.prompt:
        told |= {"prompt": new.prompt, "beginning": new.beginning}
    if new.answer and not known.answer:
        told |= {"answer": new.answer, "length": new.length}
    if known.step is None:
        told["step"] = new.step
    return replace(known, **told)


def _with_text(part: int, stored: Part, text: str) -> Iterator[int]:
    raw = stored.raw()
    # Most parts lack a rare word: they are told by their bytes, without an object for each text.
    if not _may_have(raw, text):
        return
    for place, fields in enumerate(_texts(stored)):
        if any(text in str(value).casefold() for value in fields.values()):
            yield (part << _IN_PART) + place


def _may_have(raw: bytes, text: str) -> bool:
    if not raw:
        return False
    if not text.isascii() or _NUMBER.fullmatch(text):
        return True  # other alphabets have other rules, and numbers are no text there
    return text.encode() in raw.lower()


def _texts(stored: Part) -> Sequence[Mapping[str, Any]]:
    try:
        return stored.fields()
    except StateRefused:
        return ()
