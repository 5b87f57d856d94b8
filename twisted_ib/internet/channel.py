"""
A device in a reactor: what wakes the reactor for it, and who uses it there.

On the C{ib} reactor the device is looked at in C{doPoll}.  On any other with
IReactorFDSet and IReactorTime its descriptor is a reader, and a
L{DeviceChannel.turn} runs when that is readable, or after the application did
something outside of one; a turn with traffic looks for the answer to it for a
while, if that pays (L{twisted_ib.hca.base.polling}).

A channel is in the reactor only while somebody uses it: ports, connections and
attempts hold it.  Connections that the application has closed do not: what is
left to say for them is said when the device is looked at for another reason,
or in the last turn.  The C{ib} reactor, where a channel shows nowhere, keeps it
as long as there are paths to living peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter
from typing import Any
from weakref import WeakSet

from twisted.internet import interfaces
from twisted.internet.error import ConnectError, ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import DeviceClosedError, HCAError
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.base.socketrows import noWhy, usersRows
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.receivebudget import pathOf
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, isPlacedByUser, place, watchDevices
from twisted_ib.interfaces import IReactorCompletionChannels
from twisted_ib.internet.logcontext import callInContext
from twisted_ib.internet.readers import Readers, readersOf
from twisted_ib.internet.waiting import giveWay, threadsWait

#: Seconds that a closed connection waits for the peer's part of the closing
#: (OFED's SDP_FIN_WAIT_TIMEOUT).
FIN_WAIT_SECONDS = 60.0
#: Closed connections that wait so; the oldest is aborted for one more.
CLOSING_CONNECTIONS = 4096
#: Batches that one turn of a reactor without polling serves of a device.
BATCHES_PER_TURN = 16


@implementer(interfaces.IReadDescriptor)
class DeviceChannel:
    """
    One device in one reactor.

    @ivar device: The device.
    @ivar reactor: The reactor.
    @ivar users: Ports, connections and attempts that use it.
    @ivar polled: Whether the reactor looks at the device by itself.
    @ivar polling: Where it does not: how long a turn waits for an answer.
    """

    _log = Logger()
    _readers: Readers

    def __init__(self, reactor: Any, device: Device) -> None:
        """
        Register nothing yet: that comes with the first user.

        @param reactor: The reactor.
        @param device: The device, which belongs to its thread.
        """
        self.reactor = reactor
        self.device = device
        self.users: dict[Any, None] = {}
        self._closing: dict[Any, float] = {}
        self.polling = AdaptivePolling(perf_counter, giveWay)
        self._timer: Any = None
        self._registered = self._visible = False
        self._inTurn = self._enough = self._wanted = False
        self.polled = IReactorCompletionChannels.providedBy(reactor)
        polling = getattr(reactor, "polling", None) if self.polled else self.polling
        device.pollingCounters = getattr(polling, "counters", None)
        device.warn = self._warn  # type: ignore[method-assign]
        device.socketRows = self.socketRows
        if self.polled:
            device.fabric.patient = True
        else:
            device.wanted = self._wantTurn

    def _warn(self, text: str) -> None:
        self._log.warn("{name}: {text}", name=self.device.name, text=text)

    def now(self) -> float:
        """
        @return: The device's time, seconds.
        """
        return self.device.clock()

    def count(self, name: str) -> None:
        """
        Add one to a counter of the device.

        @param name: the counter's.
        """
        self.device.count(name)

    # -- users

    def acquire(self, user: Any) -> None:
        """
        C{user} needs the device; its C{connectionLost(reason)} is called if the
        reactor gives up.
        """
        self.users[user] = None
        if not self._registered:
            self._registered = True
            # Who died while nobody looked must not be found again.
            self.device.fabric.attend()
            self._register()

    def _register(self) -> None:
        self._registered = True
        if self.polled:
            self.reactor.addChannel(self)
        else:
            self._readers = readersOf(self.reactor)
            self._readers.add(self)
        self._wantTurn()

    def appear(self) -> None:
        """
        On a reactor that polls: have others find the device, and be answered, though nobody uses it.
        It is looked at only while somebody calls.
        """
        if self.polled and not self._visible:
            self._visible = True
            self.reactor.watchChannel(self)

    def release(self, user: Any) -> None:
        """
        C{user} does not need the device any more.
        """
        self.users.pop(user, None)
        if self.users or not self._registered:
            return
        self._cancelTimer()
        if self.polled:
            self.device.markDirty(self)
        elif not self._inTurn:
            self._leave()

    def endOfBatch(self) -> None:
        """
        On a reactor that polls: the last user went in this batch.
        """
        if self._registered and not self.users:
            self._leave()

    def _leave(self) -> None:
        """
        Nobody uses the device: say what is left to say and leave the reactor.

        What does not fit into a full medium (a reset, an end of stream) keeps
        the device in the reactor until it has left, and so does what has come
        and is not taken.
        """
        if not self.polled:
            self._serve(last=True)
        if self.users or self._needed():
            return
        if not self.polled and self.device.busy():
            self._wantTurn()
        else:
            self._unregister()

    def _unregister(self) -> None:
        self._registered = False
        self._wanted = False  # Whoever comes next must ask for a turn anew.
        self._cancelTimer()
        if self.polled:
            self.reactor.removeChannel(self)
        else:
            self._readers.remove(self)

    def _needed(self) -> bool:
        """
        Whether the device needs the reactor though nobody uses it: a peer still
        has to be told of an end.  A reactor that polls, where this shows
        nowhere, also looks after the paths to living peers, whose closing
        connections end and whose deaths are noticed.
        """
        fabric = self.device.fabric
        if self.polled and (fabric.paths() or (self._visible and self.device.deadline() is not None)):
            return True
        return bool(fabric.unsent()) or any(stream.ending for stream in self._closing)

    def _cancelTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    # -- connections that the application has closed

    def closing(self, stream: Any) -> None:
        """
        The application has closed C{stream}, whose closing goes on.
        """
        now = self.now()
        closing = self._closing
        self._expireClosing(now)
        closing[stream] = now + FIN_WAIT_SECONDS
        if len(closing) > CLOSING_CONNECTIONS:
            # Whoever has most of them pays, not who waits longest.
            paths = Counter(map(pathOf, closing))
            most = max(paths, key=paths.__getitem__)
            self._giveUp(next(each for each in closing if pathOf(each) is most))

    def _expireClosing(self, now: float) -> None:
        """
        Reset the connections whose peer has not answered in time.
        """
        closing = self._closing
        while closing:
            first = next(iter(closing))
            if closing[first] > now:
                return
            self._giveUp(first)

    def _giveUp(self, stream: Any) -> None:
        """
        Wait no longer for a peer's part of a closing.
        """
        del self._closing[stream]
        self.count("closing_timed_out")
        stream.reset()

    def closed(self, stream: Any) -> None:
        """
        Nothing more is to be done for C{stream}.
        """
        self._closing.pop(stream, None)

    def socketRows(self) -> Iterator[list[Any] | None]:
        """
        @return: What C{ib-ss} shows of the users, of what they have closed, and of what the reactor has
            besides, if it has the methods for it: C{whyOf(user)} and C{socketsBeside(channel)}.
        """
        users = [*self.users, *self._closing]
        yield from usersRows(users, self.device.name, getattr(self.reactor, "whyOf", noWhy))
        beside = getattr(self.reactor, "socketsBeside", None)
        if beside is not None:
            yield from beside(self)

    # -- turns

    def fileno(self) -> int:
        """
        @return: The device's descriptor.
        """
        descriptor: int = self.device.fabric.fileno()
        return descriptor

    def logPrefix(self) -> str:
        """
        @return: The device's name.
        """
        return self.device.name

    def doRead(self) -> None:
        """
        The descriptor is readable.
        """
        self._guarded(self.device.fabric.attend)
        if not self.polled:
            self.turn()
            self.schedule()
        elif not self.users:
            if self._registered:
                self._leave()
            elif self._needed():
                self._register()

    def turn(self) -> None:
        """
        On a reactor without polling: serve the device until it has nothing to
        do, but a bounded number of batches, and have it wake the reactor.
        """
        self._wanted = False
        self._inTurn = True
        try:
            self._guarded(callInContext, self._serve, True)
        finally:
            self._inTurn = False
            if not self.device.closed:
                if not self.users and self._registered:
                    self._leave()
                if self._registered:
                    if not self.device.arm():
                        self._wantTurn()
                    self.schedule()

    def _guarded(self, call: Any, *arguments: Any) -> None:
        """
        Let no exception of one user reach the reactor, which would take the
        whole device for broken and end all users.
        """
        try:
            call(*arguments)
        except Exception:
            self._log.failure("while {name} was served", name=self.device.name)
            self._wantTurn()

    def _serve(self, wait: bool = False, last: bool = False) -> None:
        """
        A bounded number of batches, and no more when a call of the reactor is due: over TCP no answer
        overtakes what an application puts off with C{callLater(0)}.

        @param last: Nobody uses the device, so that nothing is overtaken.
        @param wait: Whether to look again for a while, after a batch that did
            something, if that may pay.
        """
        device = self.device
        timeout = getattr(self.reactor, "timeout", None)
        device.fabric.look()
        self._enough = did = False
        for _ in range(BATCHES_PER_TURN):
            if device.progress():
                did = True
            elif not (wait and did and self._await()):
                break
            if not last and (self._enough or (timeout is not None and timeout() == 0)):
                break

    def _await(self) -> bool:
        """
        Look for the peer's answer for a while.

        @return: Whether there is something.
        """
        if threadsWait(self.reactor):
            return False
        fabric = self.device.fabric
        seconds = fabric.answerSeconds
        return bool(fabric.hot) and self.polling.spin(fabric.pending, seconds, seconds)

    def endTurn(self) -> None:
        """
        Serve no more batches in this turn: something is due in the next.
        """
        self._enough = True

    def _wantTurn(self) -> None:
        """
        Something was done outside of a turn: have one soon.
        """
        if self.polled or self._inTurn or not self._registered:
            return
        if not self._wanted:
            self._wanted = True
            self.device.fabric.signal()

    def due(self) -> float | None:
        """
        For a reactor that polls, and calls L{expire} in time without being asked.

        @return: The seconds until the next deadline, perhaps none or fewer; L{None} if there is no deadline.
        """
        deadline = self._deadline() if self._registered else None
        return None if deadline is None else deadline - self.now()

    def expire(self) -> None:
        """
        For a reactor that polls: do what is due.
        """
        due = self.due()
        if due is not None and due <= 0:
            now = self.now()
            self._guarded(self._expireClosing, now)
            self._guarded(self.device.tick, now)
            if self._registered and not self.users:
                self._leave()

    def schedule(self) -> None:
        """
        Be called when the device's next deadline passes, and only then: a call that waits for a
        deadline that is none any more is taken back.

        Connections that the application has closed have one only while somebody reads.  A program that
        has left halves of connections lying about, which over TCP show nowhere, has none.
        """
        if not self._registered:
            return
        self._expireClosing(self.now())
        deadline = None
        if self.users:
            shows = self._closing and any(getattr(user, "reading", False) for user in self.users)
            deadline = self._deadline() if shows else self.device.deadline()
        if deadline is None:
            self._cancelTimer()
            return
        timer = self._timer
        delay = max(0.0, deadline - self.now())
        if timer is not None and timer.active():
            if timer.getTime() <= self.reactor.seconds() + delay:
                return
            timer.reset(delay)
        else:
            self._timer = self.reactor.callLater(delay, self._tick)

    def _deadline(self) -> float | None:
        """
        @return: The device's deadline, or that of the oldest closing.
        """
        deadline = self.device.deadline()
        if self._closing:
            closing = next(iter(self._closing.values()))
            return closing if deadline is None else min(deadline, closing)
        return deadline

    def _tick(self) -> None:
        self._timer = None
        self._guarded(self.device.tick, self.now())
        self._wantTurn()
        self.schedule()

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor gives the device up: so do its users.

        @param reason: why.
        """
        for user in list(self.users):
            try:
                user.connectionLost(reason)
            except BaseException:
                self._log.failure("a user of {name}", name=self.device.name)
        if self._registered:
            self._leave()

    def close(self) -> None:
        """
        The reactor stops for good: close the device.
        """
        self.connectionLost(Failure(ConnectionLost()))
        self._guarded(self._serve)  # Their ends are still to be said.
        self.leave()
        self.device.close()

    def leave(self) -> None:
        """
        Leave the reactor, whoever uses the device.
        """
        if self._registered:
            self._unregister()
        if self._visible:
            self._visible = False
            self.reactor.unwatchChannel(self)


#: Where a reactor has its channels, by the devices' names: in itself, for they keep it alive.
_CHANNELS = "_hcaChannels"
#: The reactors that have some.
_reactors: WeakSet[Any] = WeakSet()


def _channelsIn(reactor: Any) -> dict[str, DeviceChannel]:
    """
    @return: The channels of a reactor, made when first asked for.
    """
    channels: dict[str, DeviceChannel] | None = getattr(reactor, _CHANNELS, None)
    if channels is None:
        channels = {}
        setattr(reactor, _CHANNELS, channels)
        _reactors.add(reactor)
    return channels


def channelFor(reactor: Any, name: str | None = None, bound: str = "", peer: str = "") -> DeviceChannel:
    """
    The channel of a device in a reactor; the device is opened when first asked
    for, and closed when the reactor has stopped.

    @param reactor: The reactor; the device belongs to the thread that calls this, which has to be its.
    @param name: The device's name; L{None} for the default.
    @param bound: The address that its user binds, or nothing; and
    @param peer: where its user wants to connect to, or nothing: by these a device is opened that has an
        address of its own and was not added, one for each address (L{place
        <twisted_ib.hca.device.registry.place>}).
    @return: The same one for the same reactor, name and address, while it is open.
    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: it cannot be opened, as somebody else has its address.
    @raise RunDirectoryError: processes cannot meet.
    """
    name = DEFAULT_DEVICE if name is None else name
    channels = _channelsIn(reactor)
    channel = channels.get(name)
    if channel is None or channel.device.closed:
        address = place(name, bound, peer)
        key = f"{name}@{address}" if isPlacedByUser(name) else name
        channel = channels.get(key)
        if channel is None or channel.device.closed:
            device = Device(name, reactor.seconds, address=address)
            channel = channels[key] = DeviceChannel(reactor, device)
            reactor.addSystemEventTrigger("after", "shutdown", _close, channel)
    return channel


def _close(channel: DeviceChannel) -> None:
    try:
        channel.close()
    except HCAError:
        channel.count("close_failed")


def channelsOf(reactor: Any) -> list[DeviceChannel]:
    """
    @param reactor: Any reactor.
    @return: The channels that are open in a reactor.
    """
    return list(getattr(reactor, _CHANNELS, {}).values())


class _Removal:
    """
    What ends a device that is removed, in each reactor that has it.
    """

    def deviceAdded(self, name: str) -> None:
        """
        Nothing: it is opened when it is needed.
        """

    def deviceGoing(self, name: str) -> None:
        """
        Nothing yet.
        """

    def deviceGone(self, name: str) -> None:
        """
        Close it, in the thread that it belongs to.
        """
        for reactor in list(_reactors):
            channel = _channelsIn(reactor).get(name)
            if channel is None or channel.device.closed:
                continue
            if channel.device.thread == get_ident():
                _remove(channel)
            else:
                channel.reactor.callFromThread(_remove, channel)


def _remove(channel: DeviceChannel) -> None:
    """
    End the attempts to connect, which may go another way, then the connections, so that their peers see
    them as lost, then the ports.
    """
    gone = DeviceClosedError(f"device {channel.device.name} was removed")
    for user in list(channel.users):
        if hasattr(user, "failIfNotConnected"):
            user.failIfNotConnected(ConnectError(string=str(gone)))
    channel.leave()
    channel.device.close()
    channel.connectionLost(Failure(ConnectionLost(str(gone))))


_removal = _Removal()
watchDevices(_removal)
