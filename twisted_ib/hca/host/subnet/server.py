"""
The host of a subnet for the devices of several processes.

It has a thread of its own, as the firmware of a switch has a processor of its own: a process that computes,
or does not poll its device, keeps nobody from attaching, and its subnet manager sweeps.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from secrets import randbits
from typing import Any, Final

from attrs import evolve

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, ResourceLimitError, WireError
from twisted_ib.hca.base.port import PortChange, PortState
from twisted_ib.hca.base.timers import Timer, Timers
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.fdpassing import receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.liveness import Liveness, PeerCredentials, checkPeer
from twisted_ib.hca.host.rundirectory import RunDirectory
from twisted_ib.hca.host.subnet.attached import AttachedPort
from twisted_ib.hca.host.subnet.hosted import HostedSubnet
from twisted_ib.hca.host.subnet.messages import (
    MAD,
    MESSAGE_BYTES,
    WAYS,
    Reached,
    kindOf,
    packAttached,
    packMAD,
    packPort,
    packWays,
    parseAttach,
    parseMAD,
    refusal,
)
from twisted_ib.hca.sm.manager import Options
from twisted_ib.hca.subnet.smi import Packet
from twisted_ib.hca.subnet.switch import FIRST_MULTICAST_LID
from twisted_ib.hca.subnet.topology import parse
from twisted_ib.hca.wire.mad.classes import SUBNET_CLASSES
from twisted_ib.hca.wire.mad.mad import CLASS_AT

#: Seconds until a process that has connected must have said for which device.
ATTACH_SECONDS = 5.0
#: Seconds until it accepts again after it had no free descriptor.
ACCEPT_PAUSE_SECONDS = 0.1
#: Seconds that a host without devices stays.
LINGER_SECONDS = 1.0
#: Seconds that changes are collected for, until devices are told of them: a sweep makes many.
COLLECT_SECONDS = 0.001
#: Messages of one process that are read in its turn.
MESSAGES_PER_TURN = 64
_BACKLOG: Final = 128
#: A switch, and the adapter of the subnet manager.  Devices bring theirs.
TOPOLOGY: Final = """\
Switch 254 "switch"
[1] "manager"[1]

Ca 1 "manager"
[1] "switch"[1]
"""


class _Call:
    """
    A call that a clock of Twisted's interface has been asked for.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.cancel = timer.cancel

    def active(self) -> bool:
        return self._timer.expired is not None


class _Client:
    """
    A process with a device, or one that has yet to say so.
    """

    def __init__(self, server: SubnetServer, pair: socket.socket, credentials: PeerCredentials) -> None:
        self._server = server
        self.pair = pair
        self.fd = pair.fileno()
        self.credentials = credentials
        self.liveness = Liveness.of(pair)
        self.attached: AttachedPort | None = None
        self.deadline: Timer | None = None
        self._change: PortChange | None = None
        self._isRerouted = False
        self.isBlocked = False

    # -- IAttachedDevice

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
            sendWithDescriptors(self.pair, packMAD(packet))

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
            if not sendWithDescriptors(self.pair, packPort(self._change)):
                self.isBlocked = True
                return
            self._change = None
        if self._isRerouted:
            fd = _memory(self._server.waysOf(self.attached))
            try:
                self.isBlocked = not sendWithDescriptors(self.pair, bytes((WAYS,)), [fd])
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
    Hosts one subnet until nobody is attached any more.
    """

    def __init__(self, directory: RunDirectory, name: str, lock: int, allows: Callable[[int], bool]) -> None:
        """
        Listen; L{start} begins.

        @param directory: where the socket is; this object closes it.
        @param name: of the socket.
        @param lock: the descriptor whose lock makes this process the host; likewise.
        @param allows: whether processes of a user may attach.
        @raise OSError: the socket cannot be made.
        """
        self._directory, self._name, self._lock, self._allows = directory, name, lock, allows
        self._clients: dict[int, _Client] = {}
        #: The same by the descriptors of their processes.
        self._processes: dict[int, _Client] = {}
        self._timers = Timers(time.monotonic)
        self._collecting: Timer | None = None
        self._lingering: Timer | None = None
        self._isOver = False
        self.counters: dict[str, int] = {}
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._listener = socket.socket(socket.AF_UNIX, kind)
        try:
            # An earlier host may have left its socket there.
            directory.remove(name)
            self._listener.bind(directory.socketPath(name))
            os.chmod(name, 0o666 if directory.shared else 0o600, dir_fd=directory.fd)
            self._listener.listen(_BACKLOG)
            self._poller = select.epoll()
        except BaseException:
            self._listener.close()
            raise
        self._listen()
        self._subnet = HostedSubnet(parse(TOPOLOGY, name), self.count, self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _servers.add(self)

    def start(self) -> None:
        """
        Begin.
        """
        self._linger()
        self._thread.start()

    # -- a clock

    def seconds(self) -> float:
        """
        @return: the time.
        """
        return time.monotonic()

    def callLater(self, wait: float, call: Callable[..., object], *arguments: Any) -> _Call:
        """
        Call something later, in the thread.
        """
        return _Call(self._timers.start(wait, partial(_ignored, call, *arguments)))

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.counters[name] = self.counters.get(name, 0) + 1

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._isOver:
                deadline = self._timers.deadline()
                wait = -1 if deadline is None else max(0.0, deadline - time.monotonic())
                for fd, events in self._poller.poll(wait):
                    self._ready(fd, events)
                self._timers.tick(time.monotonic())
        finally:
            self._close()

    def _ready(self, fd: int, events: int) -> None:
        client = self._clients.get(fd)
        if client is None:
            if fd in self._processes:
                self._gone(self._processes[fd])
            elif fd == self._listener.fileno():
                self._accept()
            return
        try:
            if events & select.EPOLLOUT:
                self._flush(client)
            if events & ~select.EPOLLOUT:
                for _ in range(MESSAGES_PER_TURN):
                    received = receiveWithDescriptors(client.pair, MESSAGE_BYTES)
                    if received is None:
                        break
                    if not received[0]:
                        raise PathLostError("a process is gone")
                    self._said(client, received[0])
        except (HCAError, OSError) as error:
            self._refuse(client, error)

    def _accept(self) -> None:
        try:
            pair, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # accept(2), EMFILE: the connection stays queued and the listener readable: epoll would spin.
            self.count("accept_failed")
            self._poller.unregister(self._listener.fileno())
            self._timers.start(ACCEPT_PAUSE_SECONDS, self._listen)
            return
        try:
            pair.setblocking(False)
            if len(self._clients) >= limits.SUBNET_DEVICES:
                raise ResourceLimitError(f"{limits.SUBNET_DEVICES} devices are attached to the subnet")
            client = _Client(self, pair, checkPeer(pair, self._allows, True))
        except (HCAError, OSError) as error:
            _tell(pair, error)
            pair.close()
            self.count("attach_refused")
            return
        client.deadline = self._timers.start(ATTACH_SECONDS, partial(self._gone, client))
        self._clients[client.fd] = client
        self._poller.register(client.fd, select.EPOLLIN)
        # A forked child of the process may hold the socket open.
        if client.liveness.fd >= 0:
            self._processes[client.liveness.fd] = client
            self._poller.register(client.liveness.fd, select.EPOLLIN)

    def _listen(self) -> None:
        self._poller.register(self._listener.fileno(), select.EPOLLIN)

    def _said(self, client: _Client, octets: bytes) -> None:
        if client.attached is None:
            self._attach(client, octets)
        elif kindOf(octets) != MAD:
            raise WireError("a device sends no other messages than MADs")
        else:
            packet, port = parseMAD(octets), client.attached.port
            # Another user's process manages nothing here.
            isManager = packet.octets[CLASS_AT] in SUBNET_CLASSES
            if isManager and client.credentials.uid != os.geteuid():
                self.count("smp_other_user")
                return
            packet.slid = packet.slid if port.hasLID(packet.slid) else port.lid
            client.attached.send(packet)

    def _attach(self, client: _Client, octets: bytes) -> None:
        asked = parseAttach(octets)
        if any(asked.guid in (port.guid, port.node.guid + 1) for port in self._subnet.graph.ports()):
            raise ResourceLimitError(f"the subnet has a port with GUID {asked.guid:016x}")
        # Its node has the GUID below.
        if not asked.guid & 1 or asked.guid == 1:
            raise WireError(f"a device has no GUID {asked.guid:#x}")
        found = self._subnet.find(asked.description) if asked.description else None
        if found is not None and found.guid not in self._subnet.attached:
            # The subnet manager's port speaks for subnet administration.
            raise ResourceLimitError(f"the subnet has its own {asked.description!r}: choose another name")
        client.attached = attached = self._subnet.attach(client, asked.guid, asked.description, asked.lid)
        if client.deadline is not None:
            client.deadline.cancel()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._subnet.manager is None:
            # Not before, so that its first sweep finds the first device.
            # Its SM_Key is for none of the devices: whoever has it is told the keys of all.
            self._subnet.manage(Options(key=randbits(64) | 1))
        sendWithDescriptors(client.pair, packAttached(attached.guid))
        client.portChanged(attached.settings())

    def _refuse(self, client: _Client, error: Exception) -> None:
        if client.attached is None and not isinstance(error, PathLostError):
            _tell(client.pair, error)
            self.count("attach_refused")
        self._gone(client)

    def _gone(self, client: _Client) -> None:
        if self._clients.pop(client.fd, None) is None:
            return
        if client.deadline is not None:
            client.deadline.cancel()
        self._poller.unregister(client.fd)
        client.pair.close()
        if self._processes.pop(client.liveness.fd, None) is not None:
            self._poller.unregister(client.liveness.fd)
        client.liveness.close()
        if client.attached is not None:
            client.attached.close()
        if not any(each.attached is not None for each in self._clients.values()):
            self._linger()

    def _linger(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        self._lingering = self._timers.start(LINGER_SECONDS, self._end)

    def _end(self) -> None:
        self._isOver = True

    # -- devices

    def collect(self) -> None:
        """
        Something changed that devices are to be told of, soon.
        """
        if self._collecting is None:
            self._collecting = self._timers.start(COLLECT_SECONDS, self._collected)

    def _collected(self) -> None:
        self._collecting = None
        for client in list(self._clients.values()):
            try:
                self._flush(client)
            except (HCAError, OSError):
                self._gone(client)

    def _flush(self, client: _Client) -> None:
        was = client.isBlocked
        client.flush()
        if client.isBlocked or was:
            events = select.EPOLLIN | (select.EPOLLOUT if client.isBlocked else 0)
            self._poller.modify(client.fd, events)

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
            guid: Reached(
                each.port.lid,
                forwarding.connects(source, each.port),
                each.port.node.description,
                tuple(key for key in each.port.partitions.keys if key) or (0,),
            )
            for guid, each in subnet.attached.items()
            # Of a port that comes up again, under a new host, nothing is known yet: its connections go on.
            if each.port.state not in (PortState.INIT, PortState.ARMED)
        }
        return packWays(ways, devices, groups)

    # -- the end

    def _close(self) -> None:
        self._subnet.close()
        # In this order: who finds no socket may become the host, as soon as the lock is free.
        self._directory.remove(self._name)
        self._release()

    def _release(self) -> None:
        _servers.discard(self)
        for client in self._clients.values():
            client.pair.close()
            client.liveness.close()
        self._clients.clear()
        self._processes.clear()
        self._listener.close()
        self._poller.close()
        os.close(self._lock)
        self._directory.close()

    def forked(self) -> None:
        """
        In a forked child, which has no such thread: leave the lock and the sockets to the parent.
        """
        self._release()


def _ignored(call: Callable[..., object], *arguments: Any) -> None:
    call(*arguments)


def _tell(pair: socket.socket, error: Exception) -> None:
    with suppress(PathLostError):
        sendWithDescriptors(pair, refusal(str(error)))


_servers: set[SubnetServer] = set()


def _afterFork() -> None:
    for server in list(_servers):
        server.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afterFork)


__all__ = ["SubnetServer"]
