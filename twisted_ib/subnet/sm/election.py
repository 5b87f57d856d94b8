"""
Which subnet manager is the master: the SMInfo state machine (IBTA vol. 1 14.4.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from twisted_ib import limits
from twisted_ib.hca.base.machine import Machine, ignored
from twisted_ib.hca.mad.attributes.node import SMInfo, SMState


class Control(IntEnum):
    """
    The attribute modifier of a Set of SMInfo (IBTA vol. 1 14.2.5.13).
    """

    HANDOVER = 1
    ACKNOWLEDGE = 2
    DISABLE = 3
    STANDBY = 4
    DISCOVER = 5


#: The effects of a Set of SMInfo, IBTA vol. 1 14.4.1, figure of the SM states; any other is refused.
TRANSITIONS: Final = Machine[SMState, int, SMState | None](
    {
        # It is on its way to be the master, if there is no other.
        (SMState.DISCOVERING, Control.HANDOVER): SMState.DISCOVERING,
        (SMState.STANDBY, Control.HANDOVER): SMState.MASTER,
        (SMState.STANDBY, Control.DISABLE): SMState.NOT_ACTIVE,
        (SMState.STANDBY, Control.DISCOVER): SMState.DISCOVERING,
        (SMState.NOT_ACTIVE, Control.STANDBY): SMState.STANDBY,
        # The other half of a subnet that was split hands its part over.
        (SMState.MASTER, Control.HANDOVER): SMState.MASTER,
        # Of the one that the subnet was handed over to, and of no other.
        (SMState.MASTER, Control.ACKNOWLEDGE): SMState.STANDBY,
    },
    unlisted=ignored,
)
_PRESENT: Final = frozenset((SMState.DISCOVERING, SMState.STANDBY, SMState.MASTER))


class Election:
    """
    The state of one subnet manager among others.

    @ivar state: begins with Discovering.
    @ivar priority: 0 to 15.
    @ivar guid: of its port; of two with the same priority the lower wins.
    @ivar successor: GUID of the one that the subnet was handed over to, until it acknowledges that.
    @ivar master: GUID of the one that a standby polls.
    """

    def __init__(self, priority: int, guid: int) -> None:
        self.state = SMState.DISCOVERING
        self.priority = priority
        self.guid = guid
        self.successor = 0
        self.master = 0
        self._missed = 0

    def _rank(self, info: SMInfo) -> tuple[int, int]:
        return info.smPriority, -info.smInfoGuid

    def isHigher(self, info: SMInfo) -> bool:
        """
        @return: whether another one goes before this one.
        """
        return self._rank(info) > (self.priority, -self.guid)

    def discovered(self, others: Iterable[SMInfo]) -> None:
        """
        A sweep has found all others.  A discovering one becomes standby or master; a master gets an
        L{successor} if another goes before it.
        """
        present = sorted(
            (each for each in others if each.smState in _PRESENT and each.smInfoGuid != self.guid),
            key=lambda each: (each.smState == SMState.MASTER, *self._rank(each)),
        )
        if self.state is SMState.DISCOVERING:
            # A master that goes behind this one hands over when it has found this one.
            before = [each for each in present if each.smState == SMState.MASTER or self.isHigher(each)]
            if before:
                self._stand(before[-1].smInfoGuid)
            else:
                self.state = SMState.MASTER
        elif self.state is SMState.MASTER:
            successors = [
                each for each in present if each.smState != SMState.DISCOVERING and self.isHigher(each)
            ]
            self.successor = successors[-1].smInfoGuid if successors else 0

    def _stand(self, master: int) -> None:
        self.state, self.master, self.successor = SMState.STANDBY, master, 0
        self._missed = 0

    def controlled(self, control: int, sender: int) -> bool:
        """
        A Set of SMInfo arrived.

        @param control: its attribute modifier.
        @param sender: the GUID in its SMInfo.
        @return: whether it is valid in this state.
        """
        following = TRANSITIONS[self.state, control]
        if following is None or (control == Control.ACKNOWLEDGE and sender != self.successor):
            return False
        if following is SMState.STANDBY:
            self._stand(sender)
        else:
            self.state = following
        return True

    def polled(self, info: SMInfo | None) -> None:
        """
        A standby has asked the master.

        @param info: the answer, if there was one.
        """
        if self.state is not SMState.STANDBY:
            return
        if info is not None and info.smInfoGuid == self.master and info.smState == SMState.MASTER:
            self._missed = 0
            return
        # One that was discovering may have become the master by the next time.
        self._missed += 1
        if self._missed >= limits.SM_POLLS or (info is not None and info.smState == SMState.NOT_ACTIVE):
            self.state = SMState.DISCOVERING
