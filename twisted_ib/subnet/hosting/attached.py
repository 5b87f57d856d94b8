"""
A port of a subnet, as the device has it that is attached there, and the device, as the subnet has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twisted_ib.subnet.network.smi import Packet

if TYPE_CHECKING:
    from twisted_ib.hca.base.port import KeyViolation, PortChange
    from twisted_ib.subnet.hosting.hosted import HostedSubnet
    from twisted_ib.subnet.network.graph import Port


class IAttachedDevice(Protocol):
    """
    A device that is attached to a port.

    It is called from within what a manager or another device does, and acts later.
    """

    @property
    def isWatching(self) -> bool:
        """
        Whether it is told of all MADs that pass its port.
        """

    def passed(self, isOutbound: bool, packet: Packet) -> None:
        """
        A MAD passes the port.

        @param isOutbound: whether it leaves the port.
        @param packet: it, as it is on the link.
        """

    def portChanged(self, change: PortChange) -> None:
        """
        The port has these settings now.
        """

    def rerouted(self) -> None:
        """
        Packets may go other ways than before.
        """

    def received(self, packet: Packet) -> None:
        """
        A MAD arrived.
        """


class AttachedPort:
    """
    A port of a L{HostedSubnet} in the same thread: see L{HasPorts<twisted_ib.subnet.port.paths.HasPorts>}.

    @ivar port: it.
    @ivar device: the device.
    @ivar isSM: whether a program there is a subnet manager.
    """

    __slots__ = ("_subnet", "device", "isSM", "port")

    def __init__(self, subnet: HostedSubnet, port: Port, device: IAttachedDevice) -> None:
        self._subnet = subnet
        self.port = port
        self.device = device
        self.isSM = False

    @property
    def guid(self) -> int:
        """
        Its GUID, which is the device's.
        """
        return self.port.guid

    @property
    def generation(self) -> int:
        """
        A number that is another one when packets may go other ways.
        """
        return self._subnet.forwarding.generation

    def watchedBy(self, fabric: object) -> None:
        """
        No effect: the subnet calls by itself.
        """

    def settings(self) -> PortChange:
        """
        @return: its settings.
        """
        return self.port.settings()

    def route(self, lid: int) -> int:
        """
        @param lid: a unicast LID.
        @return: the GUID of the port that packets to it arrive at; 0 if they are lost.
        """
        found = self._subnet.forwarding.unicast(self.port, lid)
        return 0 if found is None else found.guid

    def members(self, lid: int) -> tuple[int, ...]:
        """
        @param lid: a multicast LID.
        @return: the GUIDs of the ports of other CAs that packets to it arrive at; the same object while
            nothing has changed.
        """
        return self._subnet.forwarding.group(self.port, lid)

    def connects(self, guid: int, partition: int) -> bool:
        other = self._subnet.attached.get(guid)
        return (
            other is not None
            and partition in other.port.partitions.accepted
            and self._subnet.forwarding.connects(self.port, other.port)
        )

    def refresh(self) -> None:
        """
        Take what the subnet has told: no effect, as it calls by itself.
        """

    def has(self, guid: int) -> bool:
        return guid in self._subnet.attached

    def named(self, description: str) -> int:
        """
        @param description: of a node, or its name in the topology.
        @return: the GUID of the device there; 0 if there is none.
        """
        found = self._subnet.find(description) if description else None
        return found.guid if found is not None and found.guid in self._subnet.attached else 0

    def lidOf(self, guid: int) -> int:
        found = self._subnet.attached.get(guid)
        return 0 if found is None else found.port.lid

    def send(self, packet: Packet) -> None:
        """
        Send a MAD, which may be lost.
        """
        self._subnet.send(self.port, packet)

    def setSM(self, isSM: bool, isGone: bool = False) -> None:
        """
        Set or clear PortInfo.CapabilityMask.IsSM: the device gets the SMPs that are for a subnet manager.
        Idempotent, and without effect once its node is gone.

        @param isGone: whether its subnet manager has ended without a word, and may come back.
        """
        if isSM is not self.isSM and (not isSM or self._subnet.attached.get(self.guid) is self):
            self.isSM = isSM
            self._subnet.setSM(self.port, isSM, isGone)
            self.device.portChanged(self.settings())

    def violated(self, count: int, violation: KeyViolation) -> None:
        """
        The device has dropped packets for their P_Keys or Q_Keys.

        @param violation: the latest.
        """
        self._subnet.violated(self.port, count, violation)

    def forked(self) -> None:
        """
        No effect: the child's copy of the subnet is its own.
        """

    def close(self) -> None:
        """
        The device is gone.  Idempotent.
        """
        self._subnet.detach(self)
