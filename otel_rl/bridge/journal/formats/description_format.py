"""Format of a run's description in the journal: JSON of its fields."""

import dataclasses
import json
import logging

from otel_rl.bridge.journal.interface import checksum
from otel_rl.records import (
    Attempt,
    Description,
    Device,
    ExperimentKey,
    ExperimentStatus,
    Provenance,
    WorkerFailure,
)
from otel_rl.run_id import run_id

__all__ = ["encode_description", "read_description"]

_log = logging.getLogger(__name__)


def encode_description(description: Description) -> bytes:
    """Encode a description as JSON."""
    return json.dumps(dataclasses.asdict(description), separators=(",", ":")).encode()


def read_description(key: ExperimentKey, body: bytes, crc: int) -> Description:
    """Undo ``encode_description``; an empty description where the disk has damaged it."""
    if checksum(body, run_id(key.experiment, key.trial)) != crc:
        _log.error("The metadata of %s is damaged in the journal. Check the disk.", key)
        return Description()
    fields = json.loads(body)
    fields["tags"] = tuple(fields["tags"])
    fields["status"] = ExperimentStatus(fields["status"])
    fields["devices"] = {
        prefix: Device(**device | {"workers": tuple(device["workers"])})
        for prefix, device in fields["devices"].items()
    }
    fields["attempts"] = tuple(Attempt(**attempt) for attempt in fields["attempts"])
    fields["failures"] = tuple(WorkerFailure(**failure) for failure in fields["failures"])
    provenance = fields["provenance"]
    if provenance is not None:
        texts = {name: tuple(provenance[name]) for name in ("command", "packages")}
        fields["provenance"] = Provenance(**provenance | texts)
    return Description(**fields)
