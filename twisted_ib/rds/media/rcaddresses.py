"""
RDS over RC queue pairs between hosts, as Linux has it.

Peers are IP addresses: there is one connection for each pair of addresses, with the addresses and the version
in the private data.  If both ends connect at once, both reject, and retry after a random pause.

Source: Linux 6.1 C{net/rds/ib_cm.c}, C{net/rds/rdma_transport.c}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.errors import HCAError, RDSUnsupportedError, RDSWireError, ServiceInUseError
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES as CM_HEADER_BYTES
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, gidNumber, serviceID
from twisted_ib.hca.device.registry import addressOf
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds.media.rc import Expected, RCMedium
from twisted_ib.rds.media.rcconnect import (
    RDS_DUEL_SECONDS,
    Asked,
    ConnectAttempt,
    HalfOpenSession,
    RequestListener,
    received,
)
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.protocol.wire import MAJOR, MINOR, PrivateData, agreed, servicePort

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred

    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.rds.media.rcrelay import RelayNetwork
    from twisted_ib.rds.paths.network import Network, Route
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.paths.rdmaoperations import DeviceMemory

#: The port space (RDMA_PS_TCP, as in Linux rdma_transport.c).
TCP_SPACE = int(PortSpace.TCP)


class AddressAttempt(ConnectAttempt):
    """
    An attempt to connect a pair of addresses.
    """

    def search(self) -> None:
        # As Linux ib_cm.c (rds_ib_conn_path_connect): RDMA_PS_TCP, and the port by the IP version.
        self.find(self.device.connect, TCP_SPACE, self.remote, servicePort(self.remote))

    def hello(self) -> tuple[int, str, str, bytes]:
        waiter = next(iter(self.waiters))
        # Linux ib_cm.c (rds_ib_cm_fill_conn_param): the last number received goes into the REQ.
        said = PrivateData(self.local, self.remote, acknowledged=received(waiter)).pack()
        return serviceID(TCP_SPACE, servicePort(self.remote)), self.local, self.remote, said

    def checkReply(self, said: bytes) -> None:
        answer = PrivateData.parse(said, 6 if ":" in self.remote else 4)
        # Linux ib_cm.c (rds_ib_cm_connect_complete): the REP has the version that the acceptor chose.
        if (answer.major, answer.minor) != (MAJOR, MINOR):
            raise RDSWireError(f"the peer speaks version {answer.major}.{answer.minor}")
        assert self.session is not None
        self.session.peerHas = answer.acknowledged


class AddressListener(RequestListener):
    """
    The listener of addresses.
    """

    def accept(
        self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest, asked: Asked
    ) -> None:
        # The sender has still to show that it has the address, unless the connection below has.
        if channel.device.lossless:
            super().accept(channel, connection, request, asked)
            return
        try:
            self.medium.checkRoom()
            halfOpen = HalfOpenSession(self, channel.device, connection, request, asked)
        except HCAError:
            connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())
        else:
            if connection.user is halfOpen:
                self.medium.expect(halfOpen)
                halfOpen.park()
                if connection.user is None:
                    self.medium.ceased(halfOpen)
                    self.medium.parking[channel.device.parking] = None

    def read(self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest) -> Asked | None:
        medium = self.medium
        # IBTA vol. 1 annex A11: the RDMA CM header says which IP version the private data has.
        header = RDMACMHeader.parse(request.privateData)
        said = PrivateData.parse(request.privateData[CM_HEADER_BYTES:], 6 if ":" in header.destination else 4)
        version = agreed(said)
        if version is None:
            raise RDSWireError(f"version {said.major}.{said.minor}")
        if said.typeOfService:
            # Linux has one connection for each type of service (SIOCRDSSETTOS), all between the same
            # addresses; here there is one.
            raise RDSWireError(f"type of service {said.typeOfService}")
        ours, theirs = normalise(said.destination), normalise(said.source)
        device = channel.device
        # The source must be the address that the REQ came from: otherwise a third host could take over a
        # path.
        if not device.isLocal(ours) or not device.isPeers(connection.destination, theirs):
            raise RDSWireError(f"a REQ from {theirs} to {ours}")
        # The device's own string and the path's: those of the request would be kept for each.
        if ours == device.fabric.address:
            ours = device.fabric.address
        key = ours, theirs = ours, connection.destination.peer.address
        call = medium.calls.get(key)
        # An older attempt is unlikely to be answered: the peer was restarted meanwhile and asks anew.
        if medium.network.dormant or (call and channel.now() - call.began < RDS_DUEL_SECONDS):
            return None
        # The REQ may be forged, so it creates no path: a flood of them would evict the real ones.
        path = medium.network.paths.get(key)
        has = 0 if path is None else received(path)
        # Linux ib_cm.c processes the number like an acknowledgement, which frees what needs no
        # retransmission.
        answer = PrivateData(ours, theirs, *version, acknowledged=has)
        return Asked(key, answer.pack(), said.acknowledged)


@implementer(IRDSMedium)
class AddressMedium(RCMedium):
    """
    RDS on an HCA whose peers are IP addresses.

    Anybody can forge the addresses of a REQ, so what is expected has no queue pair yet; over iWARP it has,
    where the peer may still reject the reply.
    """

    acknowledges = True
    sharesAddresses = False
    attemptClass = AddressAttempt
    listenerClass = AddressListener

    def __init__(self, network: Network, device: str | None, relay: Callable[[], RelayNetwork]) -> None:
        """
        @param relay: gives the network between the processes of an address.
        """
        super().__init__(network, device)
        self._relayOf = relay

    def localAddresses(self) -> list[str]:
        own = addressOf(self.name)
        assert own is not None
        return [own]

    def serve(self, channel: DeviceChannel, address: str, port: int) -> None:
        # Linux rdma_transport.c has one service for all its sockets, as the REQ names no RDS port.
        if address in self.services:
            return
        try:
            self.lead(address)
        except ServiceInUseError:
            relay = self._relayFor(address)
            if relay is None:
                raise
            relay.follow(address)

    def lead(self, address: str) -> None:
        """
        Have the connections of an address, for all of its processes.

        @raise ServiceInUseError: another process has them, or has died and is not quite gone.
        """
        device = self.channel(address).device
        self.services[address] = device.listen(TCP_SPACE, address, servicePort(address), self.listener)
        relay = self._relayFor(address)
        if relay is not None:
            try:
                relay.owns(address)
            except BaseException:
                self.services.pop(address).close()
                raise

    def _relayFor(self, address: str) -> RelayNetwork | None:
        # The one that hands the datagrams of an address on.
        relay = self.relay
        return None if relay is None or relay.homes.get(address) is not self else relay

    def bind(self, address: str, port: int) -> None:
        # The port is free in all processes of the address.
        relay = self._share(address, port)
        try:
            super().bind(address, port)
        except BaseException:
            if relay is not None:
                relay.shut(address, port)
            raise

    def _share(self, address: str, port: int) -> RelayNetwork | None:
        try:
            if getattr(self.channel(address).device.fabric, "group", None) is None:
                return None
            relay = self._relayOf()
            relay.open(self, address, port)
        except ServiceInUseError:
            raise
        except (HCAError, OSError, ValueError):
            # Without a run directory, say: one process then has all sockets.
            return None
        self.relay = relay
        return relay

    def unbind(self, address: str, port: int) -> None:
        super().unbind(address, port)
        relay = self._relayFor(address)
        if relay is not None:
            relay.shut(address, port)

    def domain(self, address: str) -> DeviceMemory:
        if address not in self.services:
            raise RDSUnsupportedError(f"another process of {address} has the connection: no RDMA")
        return super().domain(address)

    def whenQuiet(self) -> Deferred[None]:
        relay = self.relay
        if relay is not None and relay.dormant:
            relay.medium.whenQuiet()
        return super().whenQuiet()

    def serveNoMore(self, channel: DeviceChannel, address: str) -> None:
        service = self.services.pop(address, None)
        if service is not None:
            relay = self._relayFor(address)
            if relay is not None:
                # Before: the next one has both then.
                relay.ownsNoMore(address)
            service.close()
            for path in list(self.network.paths.values()) if relay is not None else ():
                # Peers go on with the next one; sockets of other addresses may be left here.
                if path.local == address:
                    path.close()
        channel.release(self)

    def keyOf(self, path: RDSPath) -> Any:
        return path.key

    def pathTo(self, address: str, host: str, port: int) -> Route:
        relay = self.relay
        isOthers = self._relayFor(address) is not None and address not in self.services
        if relay is not None and (isOthers or relay.isElsewhere(host, port)):
            return relay.medium.pathTo(address, host, port)
        return self.network.path((address, host), address, host)

    def serves(self, host: str, port: int) -> bool | None:
        """
        @return: L{None}: RDS drops messages to unbound ports silently, so another host gives no answer.
        """
        return None

    def expectedFor(self, key: tuple[str, str]) -> Expected | None:
        ours, theirs = key
        self.channel(ours).device.parking.resumeAll(self.listener, gidNumber(theirs))
        return super().expectedFor(key)

    def accepted(self, session: RCConnection, now: float) -> None:
        session.asked = now
        self.expect(session)
        session.channel.acquire(session)
