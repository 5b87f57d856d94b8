"""
How the subnet manager and subnet administration call each other.  Both are pure: MADs and the time come in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted_ib.hca.mad.attributes.notice import Notice
    from twisted_ib.subnet.network.smi import Packet
    from twisted_ib.subnet.sm.model import Model


class IManager(Protocol):
    """
    The subnet manager, as subnet administration sees it.

    @ivar model: the same object as long as there is a subnet manager; L{Model.replace} changes it.
    @ivar key: the SM_Key of trusted requesters.
    """

    model: Model
    key: int

    def setGroup(self, mlid: int, members: Iterable[int], senders: Iterable[int] = ()) -> None:
        """
        A multicast group has other members: the forwarding tables of switches are made so.

        @param mlid: its multicast LID.
        @param members: GUIDs of ports that receive; those that are not in the subnet are ignored until they
            are.
        @param senders: the same of ports that only send.  Neither: the group is no more.
        """

    def send(self, packet: Packet) -> None:
        """
        Send a MAD from the subnet manager's port.

        @param packet: with the peer's LID in C{dlid} and queue pair in C{destination}; C{slid} is filled in.
        """


class IAdministration(Protocol):
    """
    Subnet administration, as the subnet manager sees it.  Called while the manager is master only.
    """

    def received(self, packet: Packet, now: float) -> None:
        """
        A MAD of class 0x03 arrived at the manager's port.

        @param packet: with the sender's LID in C{slid} and queue pair in C{source}.
        @param now: seconds.
        """

    def swept(self, now: float) -> None:
        """
        The model was replaced: ports came, went, or have other LIDs.
        """

    def notify(self, notice: Notice, gid: int, now: float) -> None:
        """
        A trap arrived, which its subscribers are to be told of.

        @param gid: of the port that it came from.
        """

    def deadline(self) -> float | None:
        """
        @return: when L{expired} is to be called, if something waits.
        """

    def expired(self, now: float) -> None:
        """
        The deadline has passed.
        """

    def reset(self) -> None:
        """
        The manager is no longer master: forget groups, services and subscriptions.
        """
