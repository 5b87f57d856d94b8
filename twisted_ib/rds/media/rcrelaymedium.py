"""
The medium between the processes of an address, for L{twisted_ib.rds.media.rcrelay}: who may be at the other
end, and for which addresses.
"""

from __future__ import annotations

from os import geteuid
from typing import TYPE_CHECKING, Final, cast

from twisted_ib.errors import DeviceError, HCAError, PathLostError, RDSUnsupportedError, RDSWireError
from twisted_ib.hca.device.registry import DEFAULT_DEVICE
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.rds.media.rcprocesses import ProcessAttempt, ProcessListener, ProcessMedium
from twisted_ib.rds.paths.network import Route
from twisted_ib.rds.protocol.wire import PING_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.connection import ConnectRequest
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.rds.media.rcconnect import Asked
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.rds.media.rcrelay import RelayNetwork

#: The port space of what is handed on ("RE" in ASCII), and the port in it of the owner of an address, which
#: no socket can bind.
RELAY_SPACE: Final = 0x5245
OWNER_PORT: Final = 1


def _isOurUsers(path: IPeerPath) -> bool:
    # From the kernel (unix(7), SO_PEERCRED), as the fabric read it.
    return bool(path.peer.uid == geteuid())


class RelayAttempt(ProcessAttempt):
    """
    An attempt to connect another process.
    """

    def send(self, path: IPeerPath) -> IConnection:
        # Processes of other users learn nothing.
        if not _isOurUsers(path):
            raise PathLostError("a process of another user")
        return super().send(path)


class RelayListener(ProcessListener):
    """
    The listener for other processes.
    """

    def read(self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest) -> Asked | None:
        # Processes of other users have no part in our addresses.
        if not _isOurUsers(connection.destination):
            raise RDSWireError("a REQ of another user's process")
        return super().read(channel, connection, request)


class RelayMedium(ProcessMedium):
    """
    RDS between the processes of an address, which are those of one user (portgroup.py).
    """

    counted = "rds_relay"
    space = RELAY_SPACE
    attemptClass = RelayAttempt
    listenerClass = RelayListener
    network: RelayNetwork

    def __init__(self, network: RelayNetwork) -> None:
        super().__init__(network, DEFAULT_DEVICE)

    def attend(self, channel: DeviceChannel) -> None:
        # A reactor that polls begins to poll with the first path to another process.
        if channel.polled:
            channel.appear()
        else:
            super().attend(channel)

    def isUnbound(self, address: str, port: int) -> bool:
        # Of peers' sockets nobody here knows.
        return address in self.network.homes and super().isUnbound(address, port)

    def areBetween(self, session: RCConnection, ours: str, theirs: str) -> bool:
        # The owner of our address speaks for peers, and those that have a port of an address speak for it to
        # its owner.
        network, guid = self.network, session.key
        try:
            if (normalise(ours), normalise(theirs)) != (ours, theirs):
                return False
            if ours in network.homes:
                return theirs in network.homes or OWNER_PORT in self.portsOf(ours, guid)
            return network.isOwner(theirs) and bool(self.portsOf(theirs, guid))
        except (HCAError, OSError, ValueError):
            return False

    def serving(self, device: Device, host: str, port: int) -> Sequence[int]:
        # Of our own user only.
        return self._fabric(host).servingOurs(RELAY_SPACE << 16 | port, host)

    def checkOwner(self, address: str) -> None:
        """
        @raise DeviceError: a process of another user has the port of owners of an address.
        """
        ours = self.serving(self.channel(address).device, address, OWNER_PORT)
        if set(self._fabric(address).serving(RELAY_SPACE << 16 | OWNER_PORT, address)) - set(ours):
            raise DeviceError(f"a process of another user keeps those of {address} from sharing it")

    def portsOf(self, address: str, guid: int) -> set[int]:
        """
        @return: the ports of an address that the process with an HCA has.
        """
        return self._fabric(address).portsOf(guid, RELAY_SPACE << 16, address)

    def stamps(self, address: str) -> list[int]:
        """
        @return: what changes where a process binds a port.
        """
        return self._fabric(address).stamps()

    def _fabric(self, address: str) -> SharedMemoryFabric:
        return cast("SharedMemoryFabric", self.channel(address).device.fabric)

    def pathTo(self, address: str, host: str, port: int) -> Route:
        if port == PING_PORT:
            # The owner would answer it, and not the peer.
            raise RDSUnsupportedError(f"another process of {address} has the connection: no pings")
        return self.servedPath(address, host, port)

    def servedBy(self, address: str, host: str, port: int) -> int | None:
        # What is not of this host is the owner's.
        if host in self.network.homes:
            return super().servedBy(address, host, port)
        return super().servedBy(address, address, OWNER_PORT)
