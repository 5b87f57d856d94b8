"""
The devices of other processes at the ports of a subnet that this process hosts.

A reactor drives it, or the L{Loop<twisted_ib.subnet.hosting.hostthread.Loop>} of a thread.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import evolve

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, ResourceLimitError, WireError
from twisted_ib.hca.base.port import PortChange, PortState
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.fdpassing import receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.liveness import Liveness, PeerCredentials, checkPeer
from twisted_ib.hca.wire.mad.classes import SUBNET_CLASSES
from twisted_ib.hca.wire.mad.mad import CLASS_AT
from twisted_ib.subnet.hosting import messages
from twisted_ib.subnet.hosting.attached import AttachedPort
from twisted_ib.subnet.hosting.descriptors import Descriptor, cancel
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.place import Place
from twisted_ib.subnet.network.graph import Port
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID

#: Seconds until a process that has connected must have said for which device.
ATTACH_SECONDS = 5.0
#: Seconds until it accepts again after it had no free descriptor.
ACCEPT_PAUSE_SECONDS = 0.1
#: Seconds that changes are collected for, until devices are told of them: a sweep makes many.
COLLECT_SECONDS = 0.001
#: Messages of one process that are read in its turn.
MESSAGES_PER_TURN = 64


class _Client:
    """
    A process with a device, or one that has yet to say so.
    """

    def __init__(self, server: SubnetServer, pair: socket.socket, credentials: PeerCredentials) -> None:
        self._server = server
        self.pair = pair
        self.credentials = credentials
        self.liveness = Liveness.of(pair)
        self.attached: AttachedPort | None = None
        #: The call that drops it, until it has said for which device it is.
        self.deadline: Any = None
        self.descriptor = Descriptor(
            pair.fileno(), partial(server.readable, self), partial(server.writable, self)
        )
        self.process = Descriptor(self.liveness.fd, partial(server.ended, self))
        self._change: PortChange | None = None
        self._isRerouted = False
        self.isBlocked = self.isWatching = False

    # -- IAttachedDevice

    def passed(self, isOutbound: bool, packet: Packet) -> None:
        # Subnet management has keys that are not another user's to know.
        isKnown = packet.octets[CLASS_AT] not in SUBNET_CLASSES or self.credentials.uid == os.geteuid()
        if isKnown and self.attached is not None:
            with suppress(PathLostError):
                sendWithDescriptors(
                    self.pair, messages.packMAD(packet, messages.OUT if isOutbound else messages.INTO)
                )

    def portChanged(self, change: PortChange) -> None:
        before, self._change = self._change, change
        if before is not None and before.reregister:
            self._change = evolve(change, reregister=True)
        self._server.collect()

    def rerouted(self) -> None:
        self._isRerouted = True
        self._server.collect()

    def received(self, packet: Packet) -> None:
        # Lost if it is not read, as a datagram.
        with suppress(PathLostError):
            sendWithDescriptors(self.pair, messages.packMAD(packet))

    def close(self) -> None:
        self.pair.close()
        self.liveness.close()

    # -- what is to be told

    def flush(self) -> None:
        """
        Tell the latest settings, and what is reached; later if the process does not read.

        @raise PathLostError: it is gone.
        """
        self.isBlocked = False
        if self.attached is None:
            return
        if self._change is not None:
            if not sendWithDescriptors(self.pair, messages.packPort(self._change)):
                self.isBlocked = True
                return
            self._change = None
        if self._isRerouted:
            fd = _memory(self._server.waysOf(self.attached))
            try:
                self.isBlocked = not sendWithDescriptors(self.pair, bytes((messages.WAYS,)), [fd])
            finally:
                os.close(fd)
            self._isRerouted = self.isBlocked


def _memory(octets: bytes) -> int:
    fd = libc.memfdCreate("subnet")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(octets)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SubnetServer:
    """
    Hosts devices of processes at the ports of a subnet.
    """

    def __init__(
        self,
        subnet: HostedSubnet,
        place: Place,
        loop: Any,
        count: Callable[[str], object],
        allows: Callable[[int], bool],
        attended: Callable[[bool], object],
    ) -> None:
        """
        Begin to accept.

        @param place: of the subnet; L{close} leaves it to another process.
        @param loop: a reactor, with descriptors and time.
        @param count: called with the name of each loss.
        @param allows: whether processes of a user may attach.
        @param attended: called when a device has attached, with C{True}, and with C{False} when the last is
            gone.
        """
        self._subnet, self._place, self._loop = subnet, place, loop
        self._count, self._allows, self._attended = count, allows, attended
        self._clients: set[_Client] = set()
        self._collecting: Any = None
        self._pausing: Any = None
        self._listener = place.listener
        self._descriptor = Descriptor(self._listener.fileno(), self._accept)
        self._listen()

    # -- descriptors

    def readable(self, client: _Client) -> None:
        """
        A process says something.
        """
        try:
            for _ in range(MESSAGES_PER_TURN):
                received = receiveWithDescriptors(client.pair, messages.MESSAGE_BYTES)
                if received is None:
                    break
                if not received[0]:
                    raise PathLostError("a process is gone")
                self._said(client, received[0])
        except (HCAError, OSError) as error:
            self._refuse(client, error)

    def writable(self, client: _Client) -> None:
        """
        A process reads again, or there is something to say to it.
        """
        try:
            self._flush(client)
        except (HCAError, OSError):
            self._gone(client)

    def ended(self, client: _Client) -> None:
        """
        A process has ended: a forked child of it may hold the socket open.
        """
        # A number of the same batch of events may be another's by now.
        if client.liveness.dead():
            self._gone(client)

    def _accept(self) -> None:
        try:
            pair, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # accept(2), EMFILE: the connection stays queued and the listener readable: a reactor would spin.
            self._count("accept_failed")
            self._loop.removeReader(self._descriptor)
            self._pausing = self._loop.callLater(ACCEPT_PAUSE_SECONDS, self._listen)
            return
        try:
            if len(self._clients) >= limits.SUBNET_DEVICES:
                raise ResourceLimitError(f"{limits.SUBNET_DEVICES} devices are attached to the subnet")
            client = _Client(self, pair, checkPeer(pair, self._allows, True))
        except (HCAError, OSError) as error:
            _tell(pair, error)
            pair.close()
            self._count("attach_refused")
            return
        client.deadline = self._loop.callLater(ATTACH_SECONDS, self._gone, client)
        self._clients.add(client)
        self._loop.addReader(client.descriptor)
        if client.liveness.fd >= 0:
            self._loop.addReader(client.process)

    def _listen(self) -> None:
        self._loop.addReader(self._descriptor)

    def _said(self, client: _Client, octets: bytes) -> None:
        if client.attached is None:
            self._attach(client, octets)
        elif messages.kindOf(octets) == messages.VIOLATED:
            client.attached.violated(*messages.parseViolated(octets))
        elif messages.kindOf(octets) == messages.MANAGES:
            isSM = messages.parseManages(octets)
            if self._mayManage(client):
                client.attached.setSM(isSM)
        elif messages.kindOf(octets) != messages.MAD:
            raise WireError("a device sends no such message")
        else:
            packet, port = messages.parseMAD(octets), client.attached.port
            if packet.octets[CLASS_AT] in SUBNET_CLASSES and not self._mayManage(client):
                return
            packet.slid = packet.slid if port.hasLID(packet.slid) else port.lid
            client.attached.send(packet)

    def _mayManage(self, client: _Client) -> bool:
        # Another user's process manages nothing here.
        isOurs = client.credentials.uid == os.geteuid()
        if not isOurs:
            self._count("smp_other_user")
        return isOurs

    def _attach(self, client: _Client, octets: bytes) -> None:
        asked = messages.parseAttach(octets)
        if any(asked.guid in (port.guid, port.node.guid + 1) for port in self._subnet.graph.ports()):
            raise ResourceLimitError(f"the subnet has a port with GUID {asked.guid:016x}")
        # Its node has the GUID below.
        if not asked.guid & 1 or asked.guid == 1:
            raise WireError(f"a device has no GUID {asked.guid:#x}")
        found = self._subnet.find(asked.description) if asked.description else None
        if found is not None and found.guid not in self._subnet.attached:
            # The subnet manager's port speaks for subnet administration.
            raise ResourceLimitError(f"the subnet has its own {asked.description!r}: choose another name")
        client.isWatching = asked.isWatching
        client.attached = attached = self._subnet.attach(client, asked.guid, asked.description, asked.lid)
        # The first that it is told, before any MAD that passes.
        sendWithDescriptors(client.pair, messages.packAttached(attached.guid))
        cancel(client.deadline)
        self._attended(True)
        client.portChanged(attached.settings())

    def _refuse(self, client: _Client, error: Exception) -> None:
        if client.attached is None and not isinstance(error, PathLostError):
            _tell(client.pair, error)
            self._count("attach_refused")
        self._gone(client)

    def _gone(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._drop(client)
        if client.attached is not None:
            client.attached.close()
        if not any(each.attached is not None for each in self._clients):
            self._attended(False)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        cancel(client.deadline)
        self._loop.removeReader(client.descriptor)
        self._loop.removeWriter(client.descriptor)
        if client.liveness.fd >= 0:
            self._loop.removeReader(client.process)
        client.close()

    # -- devices

    def collect(self) -> None:
        """
        Something changed that devices are to be told of, soon.
        """
        if self._collecting is None:
            self._collecting = self._loop.callLater(COLLECT_SECONDS, self._collected)

    def _collected(self) -> None:
        self._collecting = None
        for client in list(self._clients):
            self.writable(client)

    def _flush(self, client: _Client) -> None:
        client.flush()
        if client.isBlocked:
            self._loop.addWriter(client.descriptor)
        else:
            self._loop.removeWriter(client.descriptor)

    def waysOf(self, attached: AttachedPort) -> bytes:
        """
        @return: what a device's port reaches.
        """
        subnet = self._subnet
        forwarding, source = subnet.forwarding, attached.port
        ways, groups = {}, {}
        for port in subnet.graph.ports():
            if port.isEnd and port.lid:
                for lid in range(port.lid, port.lid + (1 << port.lmc)):
                    end = forwarding.unicast(source, lid)
                    if end is not None:
                        ways[lid] = end.guid
        for node in subnet.graph.nodes.values():
            if node.switch is not None:
                for index, ports in enumerate(node.switch.multicast):
                    if ports:
                        lid = FIRST_MULTICAST_LID + index
                        groups[lid] = forwarding.group(source, lid)
        devices = {
            guid: messages.Reached(
                each.port.lid,
                forwarding.connects(source, each.port),
                each.port.node.description,
                tuple(key for key in each.port.partitions.keys if key) or (0,),
            )
            for guid, each in subnet.attached.items()
            # Of a port that comes up again, under a new host, nothing is known yet: its connections go on.
            if not (_comesUp(source) or _comesUp(each.port))
        }
        return messages.packWays(ways, devices, groups)

    # -- the end

    def close(self) -> None:
        """
        Leave the devices to another process, which hosts the subnet from then on.
        """
        cancel(self._collecting)
        cancel(self._pausing)
        for client in list(self._clients):
            self._drop(client)
        self._loop.removeReader(self._descriptor)
        self._place.close()

    def forget(self) -> None:
        """
        In a forked child: the devices are the parent's.
        """
        for client in self._clients:
            client.close()
        self._place.forget()


def _comesUp(port: Port) -> bool:
    # A subnet manager sets the states of a link's two ends one after the other.
    return any(
        each is not None and each.state in (PortState.INIT, PortState.ARMED) for each in (port, port.peer)
    )


def _tell(pair: socket.socket, error: Exception) -> None:
    with suppress(PathLostError):
        sendWithDescriptors(pair, messages.refusal(str(error)))
