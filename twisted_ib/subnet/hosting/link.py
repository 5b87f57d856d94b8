"""
The port of a subnet of the run directory, as a device of this process has it.

The first process that wants a port hosts the subnet (L{HostThread}); the others attach by its socket.  When
the host ends, one of them becomes the host, and all attach anew with the LIDs that they had.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.drive.process import monotonic, sleep
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.errors import DeviceError, HCAError, PathLostError, PeerIdentityError, WireError
from twisted_ib.hca.base.port import KeyViolation, PortChange, PortState
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.liveness import checkPeer
from twisted_ib.hca.host.rundirectory import RunDirectory, allowedUids
from twisted_ib.subnet.hosting import messages
from twisted_ib.subnet.hosting.hostthread import HostThread, noFork
from twisted_ib.subnet.hosting.place import Place, entryOf, runDirectories, subnetName
from twisted_ib.subnet.hosting.server import MESSAGES_PER_TURN

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.subnet.hosting.attached import IAttachedDevice
    from twisted_ib.subnet.network.smi import Packet

#: Seconds that a device waits for a host, and then for its port to be Active.  A switch that has just told
#: its manager of another port tells of this one after a SubnetTimeout, 1.07 s (IBTA vol. 1 C14-8.2.1).
HOST_SECONDS = 10.0
ACTIVE_SECONDS = 2.0
#: How often one looks for a host while it is made; and in its turns for the successor of one, at first and
#: when it has waited as long.
_PAUSE: Final = 0.002
LOOK_SECONDS = 0.01
LATE_LOOK_SECONDS = 1.0


class SubnetLink:
    """
    A port of a subnet that a process hosts, perhaps this one; see
    L{AttachedPort<twisted_ib.subnet.hosting.attached.AttachedPort>}.

    @ivar guid: its GUID.
    @ivar generation: grows when packets may go other ways.
    """

    def __init__(
        self,
        device: IAttachedDevice,
        guid: int,
        description: str,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """
        Attach, and wait a little until the port is Active; under a host that is stopped it is Down until that
        goes on.

        @raise DeviceError: the subnet's name is not valid, or its host refuses, or there is none.
        @raise RunDirectoryError: no run directory can be used.
        """
        self._name = subnetName(environment)
        self._environment = dict(environment)
        self._device: IAttachedDevice | None = None
        self._description = description
        # Called also before the device is complete: the first MADs make its port Active.
        self._passed = device.passed if device.isWatching else None
        #: The latest that the host has said, and what the device knows of it.
        self._settings = self._known = PortChange(state=PortState.DOWN)
        self._ways = self._current = messages.Ways()
        #: Whether the port comes up again under another host, and whether that has still to answer; its LID
        #: before, and when it is Down meanwhile.
        self._isComing = self._isAsked = False
        self._lid, self._late = 0, 0.0
        self._timer: Timer | None = None
        self._fabric: Any = None
        self._isSM = False
        self.guid = guid
        self.generation = 0
        self._pair = self._attach(0)
        if not self._isAsked:
            self._awaitActive()
        self._device = device

    # -- attaching

    def _attach(self, lid: int) -> socket.socket:
        end = monotonic() + HOST_SECONDS
        while monotonic() < end:
            pair = self._ask(lid)
            if pair is None:
                sleep(_PAUSE)
            elif self._isTaken(pair, end):
                return pair
        raise DeviceError(f"the host of subnet {self._name} does not answer")

    def _ask(self, lid: int) -> socket.socket | None:
        # Ask the host to attach this device; host the subnet if nobody does.
        allows = (allowedUids(self._environment) | {os.geteuid()}).__contains__
        with runDirectories(self._environment) as directories:
            for directory in directories:
                pair = self._call(directory, allows, lid)
                if pair is not None:
                    return pair
            isHost = self._host(directories[0], allows)
            return self._call(directories[0], allows, lid) if isHost else None

    def _call(self, directory: RunDirectory, allows: Callable[[int], bool], lid: int) -> socket.socket | None:
        try:
            pair = connect(directory, entryOf(self._name), socket.SOCK_SEQPACKET)
        except OSError:
            # There is none, it has ended, or too many call it now.
            return None
        try:
            checkPeer(pair, allows)
            if sendWithDescriptors(pair, self._request(lid)):
                return pair
        except (PathLostError, PeerIdentityError):
            # It has ended just now; or somebody else's socket has that name.
            pass
        pair.close()
        return None

    def _isTaken(self, pair: socket.socket, end: float) -> bool:
        try:
            octets = self._next(pair, end)
            self._isAsked = octets is None
            if octets is None or self._answered(octets):
                return True
        except PathLostError:
            # It has ended just now.
            pass
        except BaseException:
            pair.close()
            raise
        pair.close()
        return False

    def _answered(self, octets: bytes) -> bool:
        """
        @return: whether a message of the host says that the device is attached.
        @raise DeviceError: it is refused.
        """
        kind = messages.kindOf(octets)
        if kind == messages.REFUSED:
            raise DeviceError(f"the subnet refuses the device: {octets[1:].decode(errors='replace')}")
        if kind == messages.ATTACHED:
            self.guid = messages.parseAttached(octets)
        return kind == messages.ATTACHED

    def _request(self, lid: int) -> bytes:
        return messages.packAttach(self.guid, lid, self._description, self._passed is not None)

    def _next(self, pair: socket.socket, end: float) -> bytes | None:
        while awaitReady(pair, end - monotonic()):
            received = receiveWithDescriptors(pair, messages.MESSAGE_BYTES)
            if received is not None:
                if not received[0]:
                    raise PathLostError("the host of the subnet has ended")
                return received[0]
        return None

    def _host(self, directory: RunDirectory, allows: Callable[[int], bool]) -> bool:
        # Host the subnet, unless another process does.
        place = None
        try:
            with noFork:
                place = Place.take(directory, self._name)
                if place is None:
                    return False
                host = HostThread(place, allows)
                # It closes the place from here on.
                place = None
                host.start()
        except PermissionError:
            # The lock is another user's.
            return False
        except OSError as error:
            if place is not None:
                place.close()
            raise DeviceError(f"subnet {self._name} cannot be hosted: {error.strerror}") from error
        return True

    def _awaitActive(self) -> None:
        end = monotonic() + ACTIVE_SECONDS
        while self._settings.state is not PortState.ACTIVE or not self._ways.routes:
            # Another one, if the host has ended.
            if not awaitReady(self._pair, end - monotonic()):
                return
            self.readable()

    # -- as a port

    def watchedBy(self, fabric: Any) -> None:
        """
        @param fabric: has C{watchOther(fd, call)}, and C{unwatchOther(fd)}, which undoes it, and
            C{owner.timers}.
        """
        self._fabric = fabric
        fabric.watchOther(self._pair.fileno(), self.readable)
        if self._isAsked:
            self._late = monotonic()
            self._look()

    def settings(self) -> PortChange:
        return self._known

    def route(self, lid: int) -> int:
        return self._current.routes.get(lid, 0)

    def members(self, lid: int) -> tuple[int, ...]:
        return self._current.groups.get(lid, ())

    def connects(self, guid: int, partition: int) -> bool:
        found = self._current.devices.get(guid)
        return found is not None and found.isReached and partition in self._current.accepted[guid]

    def refresh(self) -> None:
        if self._pair.fileno() >= 0:
            self.readable()

    def has(self, guid: int) -> bool:
        return guid in self._current.devices

    def named(self, description: str) -> int:
        return messages.guidNamed(self._current.devices.items(), description)

    def lidOf(self, guid: int) -> int:
        found = self._current.devices.get(guid)
        return 0 if found is None else found.lid

    def send(self, packet: Packet) -> None:
        with suppress(PathLostError):
            sendWithDescriptors(self._pair, messages.packMAD(packet))

    def setSM(self, isSM: bool) -> None:
        """
        As of L{AttachedPort<twisted_ib.subnet.hosting.attached.AttachedPort>}; the next host is told again.

        @raise DeviceError: the host does not read.
        """
        self._isSM = isSM
        with suppress(PathLostError):
            if not sendWithDescriptors(self._pair, messages.packManages(isSM)):
                raise DeviceError(f"the host of subnet {self._name} does not read")

    def violated(self, count: int, violation: KeyViolation) -> None:
        with suppress(PathLostError):
            sendWithDescriptors(self._pair, messages.packViolated(count, violation))

    def close(self) -> None:
        self._stop()
        if self._pair.fileno() >= 0:
            self._forget()

    def forked(self) -> None:
        # The port is the parent's.
        self._device = self._fabric = None
        self._pair.close()

    def _forget(self) -> None:
        if self._fabric is not None:
            self._fabric.unwatchOther(self._pair.fileno())
        self._pair.close()
        self._isAsked = False

    # -- from the host

    def readable(self) -> None:
        """
        Take what the host says; attach to its successor if it has ended.
        """
        try:
            for _ in range(MESSAGES_PER_TURN):
                received = receiveWithDescriptors(self._pair, messages.MESSAGE_BYTES, 1)
                if received is None:
                    return
                octets, descriptors = received
                try:
                    if not octets:
                        raise PathLostError("the host of the subnet has ended")
                    self._said(octets, descriptors)
                finally:
                    closeAll(descriptors)
        except (HCAError, OSError) as error:
            if not self._isAsked:
                self._reattach()
                return
            # The successor has ended too, and the next look finds another; or it does not want the device.
            self._forget()
            if isinstance(error, DeviceError):
                self._late = monotonic()

    def _said(self, octets: bytes, descriptors: list[int]) -> None:
        kind, device = messages.kindOf(octets), self._device
        if self._isAsked:
            self._isAsked = not self._answered(octets)
            if not self._isAsked:
                self._stop()
                if self._isSM:
                    self.setSM(True)
        elif kind == messages.PORT:
            self._settings = messages.parsePort(octets)
            self._tell()
        elif kind == messages.WAYS and descriptors:
            if os.fstat(descriptors[0]).st_size > messages.WAYS_BYTES:
                raise WireError("the subnet is too large")
            self._ways = messages.Ways(os.pread(descriptors[0], messages.WAYS_BYTES, 0))
            self._tell()
        elif kind == messages.MAD and device is not None:
            device.received(messages.parseMAD(octets))
        elif kind in (messages.INTO, messages.OUT) and self._passed is not None:
            self._passed(kind == messages.OUT, messages.parseMAD(octets))

    def _reattach(self) -> None:
        self._forget()
        if self._fabric is None:
            # The device is being made, and waits for its host in any case.
            self._pair = self._attach(0)
            return
        self._lid = self._known.lid or 0
        # Connections go on as they are until the new host has made the port Active.
        self._isComing = True
        self._late = monotonic() + HOST_SECONDS
        self._look()

    def _look(self) -> None:
        # Nothing is waited for: a successor may be stopped, and the application is not.
        isLate = monotonic() >= self._late
        if isLate and self._isComing:
            self._down()
        if not self._isAsked:
            pair = None
            with suppress(HCAError, OSError):
                pair = self._ask(self._lid)
            if pair is not None:
                self._pair, self._isAsked = pair, True
                self._fabric.watchOther(pair.fileno(), self.readable)
        seconds = LATE_LOOK_SECONDS if isLate else LOOK_SECONDS
        self._timer = self._fabric.owner.timers.start(seconds, self._look)

    def _down(self) -> None:
        self._isComing = False
        self._settings, self._ways = PortChange(state=PortState.DOWN), messages.Ways()
        self._tell()

    def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _tell(self) -> None:
        device, before = self._device, self._known
        if self._isComing and self._settings.state is PortState.ACTIVE and self._ways.routes:
            self._isComing = False
        if self._isComing:
            return
        self._known, self._current = self._settings, self._ways
        self.generation += 1
        if device is not None:
            # Each that the host has told is another object.
            if self._known is not before:
                device.portChanged(self._known)
            device.rerouted()


def attached(description: str) -> Callable[[Any, int], SubnetLink]:
    """
    @return: attaches a device with a description: a function of it and its GUID.
    """
    return lambda device, guid: SubnetLink(device, guid, description)
