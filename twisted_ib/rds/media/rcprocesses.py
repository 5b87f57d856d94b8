"""
RDS over RC queue pairs between the processes of a host, or the ports of an InfiniBand subnet.

All processes of a host have all its addresses.  So each socket is published in a port space of its own, and a
sender looks there for the HCA that has the port.  All paths between two HCAs share one queue pair: the REQ
goes to an HCA, not to a port, and its private data names the requesting HCA
(L{twisted_ib.rds.protocol.wire}), which the fabric verifies.  If both connect at once, the request of the
HCA with the larger GUID is accepted.

On a device of a subnet a socket may have GIDs besides: a GID names an HCA, which the directory need not be
asked for, but only whether it has the port.

A path leads to one HCA.  When that HCA is gone, or a port has moved to another one, queued messages are
sent to the port's new HCA as new ones: it cannot have seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib.errors import HCAError, NoListenerError, RDSWireError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES as CM_HEADER_BYTES
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.host.addresses import localAddresses, normalise
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds.media.rc import RCMedium
from twisted_ib.rds.media.rcconnect import Asked, ConnectAttempt, RequestListener
from twisted_ib.rds.paths.carrier import IRDSMedium
from twisted_ib.rds.protocol.bundle import BUNDLE
from twisted_ib.rds.protocol.congestion import CongestionMap
from twisted_ib.rds.protocol.wire import PING_PORT, packHello, parseHello

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.rds.media.rcconnection import RCConnection
    from twisted_ib.rds.paths.network import Route
    from twisted_ib.rds.paths.path import RDSPath

#: The port space in which sockets are published ("RD" in ASCII); port 0 is the REQ service of an HCA, which
#: is reached by GUID and never looked up.
PORT_SPACE = 0x5244
#: How long a process may take to answer a REQ, in seconds: one that has closed its last socket lives, but
#: does not look at its HCA any more, and another may have the port meanwhile.
RDS_ANSWER_SECONDS = 4.0
#: How many unreachable HCAs are remembered, and how long their published services are ignored, in seconds.
RDS_DEAD = 4096
RDS_DEAD_SECONDS = 60.0

_LONG_AGO = float("-inf")


class ProcessAttempt(ConnectAttempt):
    """
    An attempt to connect an HCA.
    """

    def search(self) -> None:
        self.find(self.device.fabric.reach, self.key)

    def pathReady(self, path: IPeerPath) -> None:
        # No longer than a living peer needs for its answer.
        super().pathReady(path)
        if self.connection is not None:
            self._timer = self.device.timers.start(RDS_ANSWER_SECONDS, self.unanswered)

    def hello(self) -> tuple[int, str, str, bytes]:
        # The addresses mean nothing here, but the RDMA CM header is required (IBTA vol. 1 annex A11).
        return self.medium.space << 16, "127.0.0.1", "127.0.0.1", packHello(self.device.guid)

    def checkReply(self, said: bytes) -> None:
        if parseHello(said) != self.key:
            # The path would deliver to a process that the route does not mean.
            raise RDSWireError("another HCA has answered")


class ProcessListener(RequestListener):
    """
    The listener of an HCA.
    """

    def read(self, channel: DeviceChannel, connection: IConnection, request: ConnectRequest) -> Asked | None:
        if request.serviceID != self.medium.space << 16:
            raise RDSWireError("a REQ for something else")
        guid = parseHello(request.privateData[CM_HEADER_BYTES:])
        device = channel.device
        # Any process can write any GUID into a REQ; the fabric knows which HCA really sent it.
        proof = device.fabric.proves(connection.destination, guid)
        if proof is False:
            raise RDSWireError(f"a REQ of somebody who is not HCA {guid:016x}")
        # Both connect at once: the smaller GUID gives up its attempt, the larger rejects.
        if proof is None or (guid in self.medium.calls and guid < device.guid):
            return None
        return Asked(guid, packHello(device.guid), 0)


@implementer(IRDSMedium)
class ProcessMedium(RCMedium):
    """
    RDS on an HCA whose peers are processes of this host.
    """

    acknowledges = False
    sharesAddresses = True
    space = PORT_SPACE
    attemptClass = ProcessAttempt
    listenerClass = ProcessListener

    def __init__(self, network: Any, device: str | None = None) -> None:
        super().__init__(network, device)
        self._dead: dict[int, float] = {}

    def localAddresses(self) -> list[str]:
        return [address for address in map(normalise, localAddresses()) if "%" not in address]

    def serve(self, channel: DeviceChannel, address: str, port: int) -> Any:
        # With the first socket comes the REQ service of this HCA for all ports, which is reached by GUID and
        # so not published.
        service = channel.device.listen(self.space, address, port, self.listener)
        if None not in self.services:
            channel.device.services.serve(self.space << 16, self.listener)
            self.services[None] = None
        return service

    def serveNoMore(self, channel: DeviceChannel, address: str) -> None:
        if not self.bound:
            self.services.pop(None, None)
            channel.device.services.serveNoMore(self.space << 16)
            channel.release(self)

    def keyOf(self, path: RDSPath) -> Any:
        return path.key[2]

    # -- paths

    def pathTo(self, address: str, host: str, port: int) -> Route:
        network = self.network
        device = self.channel(host).device
        if port == PING_PORT and device.guidOf(host) in (0, device.guid):
            # Any process answers a ping for the host: one that is connected, or this one.
            for path in network.paths.values():
                if (path.local, path.remote) == (address, host) and path.carrier is not None:
                    return path
            return network.loop(address, host)
        return self.servedPath(address, host, port)

    def servedPath(self, address: str, host: str, port: int) -> RDSPath:
        """
        @return: the path to the HCA that serves a socket; while none does, one that looks for it.
        """
        guid = self.servedBy(address, host, port)
        key = (address, host, None, port) if guid is None else (address, host, guid)
        return self.network.path(key, address, host)

    def servedBy(self, address: str, host: str, port: int) -> int | None:
        """
        @param address: the sender's.
        @return: the GUID of the HCA that serves a socket.
        """
        channel = self.channel(host)
        device = channel.device
        found = self.serving(device, host, port)
        named = device.guidOf(host)
        if named:
            # Each HCA answers pings, and no other has its GID.
            found = [named] if named in found or port == PING_PORT else []
        # The directory may still name HCAs of dead processes: those that did not answer are skipped for a
        # while.
        for guid in found:
            if channel.now() - self._dead.get(guid, _LONG_AGO) > RDS_DEAD_SECONDS:
                return int(guid)
        return None

    def serving(self, device: Device, host: str, port: int) -> Sequence[int]:
        """
        @return: the GUIDs of the HCAs that serve a socket, best first.
        """
        return device.fabric.serving(self.space << 16 | port, host)

    def serves(self, host: str, port: int) -> bool | None:
        """
        @return: whether some process has a port.
        """
        return (host, port) in self.network.sockets or self.servedBy(host, host, port) is not None

    def begin(self, path: RDSPath) -> None:
        # A peer whose HCA is not known yet is looked for.
        if self.keyOf(path) is None:
            self._find(path)
        else:
            super().begin(path)

    def _find(self, path: RDSPath) -> None:
        port = path.key[3]
        try:
            served = (
                self.servedBy(path.local, path.remote, port) is not None
                or (path.remote, port) in self.network.sockets
            )
        except (HCAError, OSError) as reason:
            path.carrierFailed(reason)
            return
        if served:
            self.relocate(path)
        else:
            path.carrierFailed(NoListenerError(f"nobody has port {port} of {path.remote}"))

    def failed(self, path: RDSPath, reason: Exception) -> None:
        # The port may be another HCA's.
        if isinstance(reason, NoListenerError):
            # The HCA is gone, though its published services may remain.
            if len(self._dead) >= RDS_DEAD:
                # Bounded: the oldest entry is evicted.
                del self._dead[next(iter(self._dead))]
            self._dead[path.key[2]] = self.channel(path.local).now()
            self.relocate(path)
        elif self._hasMoved(path):
            self.relocate(path)
        else:
            super().failed(path, reason)

    def _hasMoved(self, path: RDSPath) -> bool:
        # A queued message may be for a port that is served by another HCA now.
        ports = {message.destinationPort for message in path.machine.waiting if message.owner is not None}
        return any(self.servedBy(path.local, path.remote, port) != path.key[2] for port in ports)

    def relocate(self, path: RDSPath) -> None:
        """
        Send what waits on a path to the HCA that has its port now.
        """
        network = self.network
        self.moved()
        if path.held:
            # The dead peer's congestion map would hold messages back for ever.
            path.machine.peerMap = CongestionMap()
            network.congestionChanged(path)
        for message in network.forget(path):
            # New messages for the new path: numbers and flags belonged to the old one.
            message.sequence = 0
            message.flags &= BUNDLE
            try:
                target = network.route(path.local, path.remote, message.destinationPort)
            except (HCAError, OSError):
                message.owner.messageDropped(message)
                continue
            isWhole = target.bundles or not message.flags
            for each in [message] if isWhole else message.owner.separate(message):
                target.send(each)
        if path.key[2] in self._dead:
            # Stream sessions with the dead process end at once, without waiting for their probes.
            for socket in set(network.sockets.values()):
                gone = getattr(getattr(socket, "protocol", None), "processGone", None)
                if gone is not None:
                    gone(path.remote)

    def accepted(self, session: RCConnection, now: float) -> None:
        # The directory has said who asks.
        self.connected(session, {})


class SubnetMedium(ProcessMedium):
    """
    RDS on an HCA of a subnet, whose ports have GIDs.
    """

    def localAddresses(self) -> list[str]:
        return [*super().localAddresses(), *self.channel("").device.gids()]

    def sourceFor(self, host: str) -> str:
        # The port's own GID for a GID of its subnet.
        device = self.channel(host).device
        return str(device.gids()[0]) if device.guidOf(host) else super().sourceFor(host)

    def locate(self, host: str, found: Callable[[str | HCAError], object]) -> None:
        resolver = self.channel(host).device.resolver
        if resolver is None or not resolver.sourceFor(host):
            found(host)
            return

        def located(gid: int | HCAError) -> None:
            found(gid if isinstance(gid, HCAError) else normalise(gidText(gid)))

        resolver.locate(host, located)

    def hostNamed(self, name: str) -> str:
        # The name is that of a node of the subnet.
        return str(self.channel("").device.hostNamed(name))

    def unknownHost(self, name: str) -> str:
        return str(self.channel("").device.unknownHost(name))
