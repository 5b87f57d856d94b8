"""
The base of all fabrics, whatever carries their records.
"""

from __future__ import annotations

from typing import Any, ClassVar

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.hca.base.traits import LOCAL, Traits


class CompletedSearch:
    """
    The result of a search that is complete at once, with nothing to cancel.
    """

    def cancel(self) -> None:
        """
        Do nothing: the consumer has been called already.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class Fabric:
    """
    A base of fabrics: what holds for one that shares no memory, waits for no time and has one descriptor.
    See L{IFabric<twisted_ib.hca.base.interfaces.IFabric>} and
    L{IFabricProgress<twisted_ib.hca.base.interfaces.IFabricProgress>}.

    @ivar owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
    @ivar bells: The paths whose peers must be notified at the end of the batch.
    @ivar delayed: The paths on which connection management waits for room.
    @ivar rung: How often a peer was woken.
    @ivar sleeps: How often this side went to sleep.
    @ivar asleep: Whether the descriptor must become readable when there is work.
    @ivar patient: Whether the caller polls C{progress} until nothing comes.
    @ivar facts: Texts that describe it beside its traits, or instead of one, by name.
    @cvar answerSeconds: How long polling for an answer pays, even if the peer has slept.
    @cvar name: The kind of fabric.
    @cvar traits: The facts of this kind of fabric.
    @cvar pathClass: Makes its paths; of those fabrics whose paths carry records.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits] = LOCAL
    answerSeconds: ClassVar[float] = limits.ANSWER_SECONDS

    def __init__(self, owner: Any, guid: int) -> None:
        self.owner = owner
        self.guid = guid
        self.bells: list[Any] = []
        self.delayed: dict[Any, None] = {}
        self.rung = self.sleeps = 0
        self.patient = self.asleep = False
        self.facts: dict[str, str] = {}

    def count(self, name: str) -> None:
        self.owner.count(name)

    def ringLater(self, path: Any) -> None:
        """
        Have the peer of a path notified when the batch ends.
        """
        self.bells.append(path)
        # Something may be published outside of a turn, where nothing would end the batch: ask the device
        # for a turn.
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

    def trace(self, observer: Any) -> None:
        # Not an attribute of this class: one that is compiled would not see that of an interpreted fabric.
        fabric: Any = self
        fabric.pathClass = observer.tracedPaths(fabric.pathClass)

    def octets(self) -> tuple[int, int] | None:
        return None

    def published(self) -> int:
        return 0

    def unsent(self) -> bool:
        return bool(self.delayed)

    def allocate(self, size: int) -> Any:
        return None

    def registerWith(self, poller: Any) -> None:
        pass  # The descriptor is enough.

    def deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        pass  # There are no timers.

    def pending(self) -> bool:
        raise NotImplementedError

    def arm(self) -> bool:
        if self.pending():
            return False
        self.asleep = True
        self.sleeps += 1
        return True

    def look(self) -> bool:
        self.asleep = False
        return self.pending()
