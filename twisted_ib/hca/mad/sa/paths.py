"""
The path records that a port remembers, by GID.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from twisted_ib.hca.mad.attributes.administration import PathRecord
from twisted_ib.limits import SA_PATH_SECONDS, SA_PATHS


class PathKey(NamedTuple):
    """
    The components of a query for a path.

    @ivar pKey: 0 for any partition.
    """

    dgid: int
    sgid: int
    pKey: int = 0


class PathCache:
    """
    Path records, for L{SA_PATH_SECONDS<limits.SA_PATH_SECONDS>}.  Over L{SA_PATHS<limits.SA_PATHS>} the one
    that was not used for longest is forgotten.
    """

    __slots__ = ("_found", "generation")

    def __init__(self) -> None:
        self._found: OrderedDict[PathKey, tuple[float, PathRecord]] = OrderedDict()
        #: Moves on with every L{clear}, so that an answer to a request of before is not remembered.
        self.generation = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: PathKey, record: PathRecord, now: float) -> None:
        """
        Remember a path.

        @param now: seconds.
        """
        self._found[key] = now + SA_PATH_SECONDS, record
        self._found.move_to_end(key)
        if len(self._found) > SA_PATHS:
            self._found.popitem(last=False)

    def find(self, key: PathKey, now: float) -> PathRecord | None:
        """
        @return: the path, if it is remembered.
        """
        found = self._found.get(key)
        if found is None:
            return None
        if found[0] <= now:
            del self._found[key]
            return None
        self._found.move_to_end(key)
        return found[1]

    def forget(self, gid: int) -> None:
        """
        The paths from and to a port are no longer so.
        """
        for key in [key for key in self._found if gid in (key.dgid, key.sgid)]:
            del self._found[key]

    def clear(self) -> None:
        """
        The subnet has changed.
        """
        self._found.clear()
        self.generation += 1
