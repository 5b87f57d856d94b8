"""
How the subnet manager calls subnet administration.  Both are pure: MADs and the time come in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted_ib.hca.mad.attributes.notice import Notice
    from twisted_ib.subnet.network.smi import Packet


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
