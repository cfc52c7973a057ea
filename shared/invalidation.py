"""What a policy change tells the replicas: forget what you cached about this.

A message may be lost, doubled or late, so it carries no policy, only what to forget and the number
of the change; whoever misses one notices by the revision number in the database.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    KEY = "key"
    TENANT = "tenant"
    GROUP = "group"
    MODEL = "model"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Invalidation:
    kind: Kind
    id: str
    """The id of what changed; of a group its name; empty for `all`."""
    revision: int
    """The revision number in the database once the change was committed."""

    def encode(self) -> str:
        """As one JSON object."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> Invalidation:
        """The inverse of `encode`. Raises ValueError for anything else."""
        try:
            match json.loads(text):
                case {"kind": str(kind), "id": str(id_), "revision": int(revision)}:
                    return cls(Kind(kind), id_, revision)
        except (ValueError, RecursionError) as error:
            raise ValueError("not an invalidation") from error
        raise ValueError("not an invalidation")
