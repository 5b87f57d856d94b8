"""
What fabrics have in common, whatever their paths are made of.
"""

from __future__ import annotations

from typing import Any

from twisted_ib import limits


class Found:
    """
    The result of a search, which is never late.
    """

    def cancel(self) -> None:
        """
        There is nothing to cancel.
        """


class Fabric:
    """
    A base of fabrics.

    @ivar owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
    @ivar guid: The HCA's GUID.
    @ivar bells: The paths whose other ends must hear of something published.
    @ivar delayed: The paths on which connection management waits for room.
    @ivar rung: How often another was woken.
    @ivar sleeps: How often this side went to sleep.
    @ivar asleep: Whether the descriptor must tell of work.
    @ivar patient: Whether somebody calls C{progress} again at once, until nothing comes.
    @cvar answerSeconds: For how long it pays to look for an answer, even if its sender has slept.
    @cvar addressed: Whether peers are IP addresses, and not processes of this host.
    """

    addressed = False
    answerSeconds = limits.ANSWER_SECONDS

    def __init__(self, owner: Any, guid: int) -> None:
        """
        Have no paths.

        @param owner: The device.
        @param guid: Its GUID.
        """
        self.owner = owner
        self.guid = guid
        self.bells: list[Any] = []
        self.delayed: dict[Any, None] = {}
        self.rung = self.sleeps = 0
        self.patient = self.asleep = False

    def count(self, name: str) -> None:
        """
        Count something on the device.
        """
        self.owner.count(name)

    def ringLater(self, path: Any) -> None:
        """
        Something was published, perhaps outside of a turn: its batch must end.
        """
        self.bells.append(path)
        wanted = self.owner.wanted
        if wanted is not None:
            wanted()

    def unsent(self) -> bool:
        """
        See L{IFabric<twisted_ib.hca.base.interfaces.IFabric>}.
        """
        return bool(self.delayed)

    def pending(self) -> bool:
        """
        @return: Whether there is something to do.
        """
        raise NotImplementedError

    def arm(self) -> bool:
        """
        Have work make the descriptor readable from now on.

        @return: False if there is work after all.
        """
        if self.pending():
            return False
        self.asleep = True
        self.sleeps += 1
        return True

    def look(self) -> bool:
        """
        Nobody need tell of work any more.

        @return: Whether there is some.
        """
        self.asleep = False
        return self.pending()


__all__ = ["Fabric", "Found"]
