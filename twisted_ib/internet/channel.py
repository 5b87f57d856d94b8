"""
A device in a reactor: how events reach the reactor, and which ports and connections use the device.

The C{ib} reactor polls the device in C{doPoll}.  In any other reactor with C{IReactorFDSet} and
C{IReactorTime} the device's descriptor is a reader, and L{DeviceChannel.turn} runs when it is readable, or
after the application did something outside of a turn; a turn with traffic polls a while for the answer, if
that pays (L{twisted_ib.hca.base.polling}).

A channel is in the reactor only while ports, connections or attempts use it.  Connections that the
application has closed do not count: their closing goes on when the device is served for another reason, or in
the last turn.  The C{ib} reactor keeps a channel, which is invisible there, as long as there are paths to
living peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twisted.internet import interfaces
from twisted.internet.error import ConnectError, ConnectionLost
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.drive.process import members, perf_counter
from twisted_ib.errors import DeviceClosedError, HCAError, PathLostError
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.base.socketrows import noWhy, usersRows
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.receivebudget import pathOf
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, isPlacedByUser, place, watchDevices
from twisted_ib.hca.host.socketpage.page import ShownSockets
from twisted_ib.interfaces import IReactorCompletionChannels
from twisted_ib.internet import readers
from twisted_ib.internet.addressing.localports import LocalPorts
from twisted_ib.internet.batchedcalls import batchedCallsOf
from twisted_ib.internet.logcontext import callInContext
from twisted_ib.internet.readers import Readers, callSoon, readersOf, threadsNeedInterpreter, yieldCPU

if TYPE_CHECKING:
    from twisted.internet.base import DelayedCall
    from twisted.internet.interfaces import IReactorTime

    from twisted_ib.internet.readers import ChannelAttempt, ChannelReactor, ChannelUser, ClosingStream

#: Seconds that a closed connection waits for the peer's part (OFED C{sdp.h}: SDP_FIN_WAIT_TIMEOUT).
FIN_WAIT_SECONDS = 60.0
#: Closed connections that wait so; beyond it one is reset.
CLOSING_CONNECTIONS = 4096
#: Seconds that polling for the answer of a peer that was woken pays: who sleeps too soon is woken in turn.
WAKING_SECONDS = 200e-6
#: Batches that one turn serves in a reactor without polling: sockets and timers must have their turn.
BATCHES_PER_TURN = 16
#: How often, and after how many seconds each, libraries are asked to let go of an adapter that is gone.
_RELEASES, _RELEASE_SECONDS = 100, 0.05


@implementer(interfaces.IReadDescriptor)
class DeviceChannel:
    """
    One device in one reactor: see L{Driven<twisted_ib.drive.turn.Driven>}.

    @ivar users: Ports and connections that use it, in order of arrival; see L{ShownSockets}.
    @ivar shown: Those that stand in the socket page; L{None} if commands do not find the device.
    @ivar now: Returns the device's time, in seconds.
    @ivar arm: The device's, as C{progress} and C{look}.
    @ivar attempts: Attempts to connect, which have no transport yet.
    @ivar localPorts: The numbers of active sides.
    @ivar batchedCalls: The reactor's.
    @ivar polled: Whether the reactor polls the device by itself.
    @ivar polling: Where it does not: how long a turn polls for an answer.
    """

    _log = Logger()
    _readers: Readers
    _isAdvised = False

    def __init__(self, reactor: Any, device: Device) -> None:
        """
        Register nothing: the first user does.

        @param device: The device, which belongs to the thread of the reactor.
        """
        self.reactor: ChannelReactor = reactor
        self.device = device
        self.now = device.clock
        # As the device itself: a reactor that polls calls them in each turn.
        self.progress, self.arm, self.look = device.progress, device.arm, device.look
        # Only the number of a connection that is TCP's is the kernel's; elsewhere it is in messages alone.
        self.localPorts = LocalPorts(isFree=getattr(device.fabric, "isPortFree", None))
        self.batchedCalls = batchedCallsOf(reactor)
        self.users: dict[Any, int | None] = {}
        self.attempts: dict[ChannelAttempt, None] = {}
        self._closing: dict[ClosingStream, float] = {}
        self.polling = AdaptivePolling(perf_counter, yieldCPU)
        self._timer: DelayedCall | None = None
        self._rung = 0  # How often the device had woken a peer before the present batches.
        self._registered = self._visible = self._inTurn = self._enough = self._wanted = False
        # asyncio's calls that are ready, results of threads and turns of other devices among them, but no
        # delayed ones: the reactor has no queue of its own.
        self._due: Collection[object] = getattr(getattr(reactor, "_asyncioEventloop", None), "_ready", ())
        self.polled = IReactorCompletionChannels.providedBy(reactor)
        polling = getattr(reactor, "polling", None) if self.polled else self.polling
        device.pollingCounters = getattr(polling, "counters", None)
        device.warn = self._warn  # type: ignore[method-assign]
        device.whenGone = self._adapterGone
        device.socketRows = self.socketRows
        self.shown = ShownSockets(device.name, self.users, device.openSocketPage) if device.isAsked else None
        if self.polled:
            device.fabric.patient = True
        else:
            device.wanted = device.timers.wanted = self._wantTurn
        if device.traits.packets and device.fabric.icrc == "zlib":
            self._adviseISAL()

    def _adviseISAL(self) -> None:
        # One line in each process, whatever it opens.
        if not DeviceChannel._isAdvised:
            DeviceChannel._isAdvised = True
            self._log.info(
                "{name}: zlib computes the CRC of packets; isal is several times as fast:"
                " pip install 'twisted-ib[fast]'",
                name=self.device.name,
            )

    def _warn(self, text: str) -> None:
        self._log.warn("{name}: {text}", name=self.device.name, text=text)

    def _adapterGone(self, reason: PathLostError, release: Callable[[], bool]) -> None:
        # Not within its own turn.  The next user opens it anew, once it is back.
        self._warn(str(reason))
        self.reactor.callLater(0, _remove, self, reason)
        self.reactor.callLater(_RELEASE_SECONDS, self._release, release, _RELEASES)

    def _release(self, release: Callable[[], bool], left: int) -> None:
        if left and not release():
            self.reactor.callLater(_RELEASE_SECONDS, self._release, release, left - 1)

    def count(self, name: str) -> None:
        """
        Add one to a counter of the device.
        """
        self.device.count(name)

    # -- users

    def acquire(self, user: ChannelUser) -> None:
        """
        Add a user, an object whose C{connectionLost(reason)} is called if the reactor closes.
        """
        self.users[user] = None
        if not self._registered:
            self._begin()

    def attempt(self, attempt: ChannelAttempt) -> None:
        """
        Add an attempt to connect, a user that has a transport soon or ends.
        """
        # Not among the connections: a dictionary keeps room for entries that have gone.
        self.attempts[attempt] = None
        if not self._registered:
            self._begin()

    def _begin(self) -> None:
        self._registered = True
        # Peers that ended while the device was not watched must be gone before a path to them is found again.
        self.device.fabric.attend()
        self._register()

    def _register(self) -> None:
        self._registered = True
        if self.polled:
            self.reactor.addChannel(self)
        else:
            self.device.fabric.registerWith(None)
            self._readers = readersOf(self.reactor)
            self._readers.add(self)
        self._wantTurn()

    def appear(self) -> None:
        """
        On a reactor that polls: let other processes find and query the device though nobody uses it.

        Only its descriptor is watched; nothing is polled.
        """
        if self.polled and not self._visible:
            self._visible = True
            self.reactor.watchChannel(self)

    def release(self, user: ChannelUser) -> None:
        """
        Remove a user.
        """
        offset = self.users.pop(user, None)
        if offset is not None:
            shown = self.shown
            assert shown is not None
            if not (shown.gone or shown.unshown):
                self.device.markDirty(shown)
            shown.gone.append(offset)
        if not self.users and not self.attempts:
            self._unused()

    def attempted(self, attempt: ChannelAttempt) -> None:
        """
        Remove an attempt.
        """
        self.attempts.pop(attempt, None)
        if not self.attempts:
            self.attempts.clear()  # Of that room.
            if not self.users:
                self._unused()

    def _unused(self) -> None:
        if not self._registered:
            return
        self._cancelTimer()
        # Not in the call of a user: the channel leaves at the end of the batch, or of the turn.
        if self.polled:
            self.device.markDirty(self)
        elif not self._inTurn:
            self._leave()
            # If it stays: the device was looked at, and is armed again at the end of a turn.
            self._wantTurn()

    def endOfBatch(self) -> None:
        # On a reactor that polls: leave if the last user went in this batch.
        if self._registered and not self.users and not self.attempts:
            self._leave()

    def _leave(self) -> None:
        if not self.polled:
            self._serve(last=True)
        # A DisConn, DREQ or reset that does not fit into a full medium keeps the device in the reactor until
        # it has left: the peer would wait for its own timeout otherwise.  So do records that came and are not
        # consumed.
        if self.users or self.attempts or self._needed():
            return
        if not self.polled and self.device.busy():
            self._wantTurn()
        else:
            self._unregister()

    def _unregister(self) -> None:
        # The next user must ask for a turn anew.
        self._registered = self._wanted = False
        self._cancelTimer()
        if self.polled:
            self.reactor.removeChannel(self)
        else:
            self._readers.remove(self)

    def _needed(self) -> bool:
        fabric = self.device.fabric
        # A reactor that polls shows no channel in getReaders(), so it may also stay for the paths to living
        # peers: their connections close, and their deaths are noticed.  Elsewhere trial would call it a dirty
        # reactor.
        if self.polled and (fabric.paths() or (self._visible and self.device.deadline() is not None)):
            return True
        return bool(fabric.unsent()) or any(stream.ending for stream in self._closing)

    def _cancelTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    # -- connections that the application has closed

    def closing(self, stream: ClosingStream) -> None:
        """
        The application closed C{stream}; the closing handshake goes on.
        """
        now = self.now()
        closing = self._closing
        self._expireClosing(now)
        closing[stream] = now + FIN_WAIT_SECONDS
        if len(closing) > CLOSING_CONNECTIONS:
            # The peer with the most of them loses one, not the peer that waits longest: a peer that never
            # answers a DisConn cannot use up the others' share.
            paths = Counter(map(pathOf, closing))
            most = max(paths, key=paths.__getitem__)
            self._giveUp(next(each for each in closing if pathOf(each) is most))

    def _expireClosing(self, now: float) -> None:
        closing = self._closing
        # In order of insertion, and all wait equally long, so the first is the oldest.
        while closing:
            first = next(iter(closing))
            if closing[first] > now:
                return
            self._giveUp(first)

    def _giveUp(self, stream: ClosingStream) -> None:
        del self._closing[stream]
        self.count("closing_timed_out")
        # OFED's sdp_main.c also sends the DREQ itself after its timeout (dreq_wait_work).
        stream.reset()

    def closed(self, stream: ClosingStream) -> None:
        """
        C{stream} has finished its closing handshake.
        """
        self._closing.pop(stream, None)

    def socketRows(self) -> Iterator[list[Any] | None]:
        """
        Yield the rows of C{ib-ss} for users and closing connections.

        A reactor may add its own, and reasons, by the methods C{socketsBeside(channel)} and C{whyOf(user)}.
        """
        users = [*self.users, *self.attempts, *self._closing]
        yield from usersRows(users, self.device.name, getattr(self.reactor, "whyOf", noWhy))
        beside = getattr(self.reactor, "socketsBeside", None)
        if beside is not None:
            yield from beside(self)

    # -- turns

    def fileno(self) -> int:
        descriptor: int = self.device.fabric.fileno()
        return descriptor

    def logPrefix(self) -> str:
        return self.device.name

    def doRead(self) -> None:
        self._guarded(self.device.fabric.attend)
        if not self.polled:
            self.turn()
            self.schedule()
        elif self.users or self.attempts:
            # It may have used up bells of what came after the reactor's look.
            self.device.fabric.look()
        elif self._registered:
            self._leave()
        elif self._needed():
            self._register()

    def turn(self) -> None:
        """
        On a reactor without polling: serve a bounded number of batches, then arm the descriptor.
        """
        self._wanted = False
        fabric = self.device.fabric
        # Until the device is armed, or left: what waits then is sent.
        fabric.patient = self._inTurn = True
        try:
            self._guarded(callInContext, self._serve, True)
        finally:
            fabric.patient = self._inTurn = False
            if not self.device.closed:
                if self._registered and not self.users and not self.attempts:
                    self._leave()
                if self._registered:
                    # IBTA vol. 1 11.4.2.2: a completion that came between the last poll and the arming raises
                    # no event.  As after ibv_req_notify_cq(3) the device is looked at once more; arm() says
                    # whether that is needed.
                    if not self.device.arm():
                        self._wantTurn()
                    self.schedule()

    def _guarded(self, call: Callable[..., object], *arguments: object) -> None:
        # A reactor drops a reader that raises: one user's mistake would end the connections of all.
        try:
            call(*arguments)
        except Exception:
            self._log.failure("while {name} was served", name=self.device.name)
            self._wantTurn()

    def _serve(self, wait: bool = False, last: bool = False) -> None:
        device = self.device
        # Over TCP no answer overtakes a thread's result, or what callLater(0) put off: the batches end when a
        # call is due.  In the last serving there is no application to overtake.
        timeout = getattr(self.reactor, "timeout", None)
        device.fabric.look()
        self._rung = device.fabric.rung
        self._enough = False
        for _ in range(BATCHES_PER_TURN):
            if not device.progress():
                break
            if not last and (self._enough or self._due or (timeout is not None and timeout() == 0)):
                break
            if wait:
                self._await()

    def _await(self) -> None:
        # Polling keeps the interpreter lock: a thread that computes the answer would wait for it.
        if threadsNeedInterpreter(self.reactor):
            return
        fabric = self.device.fabric
        seconds = fabric.answerSeconds
        if self._rung != fabric.rung:
            self._rung, seconds = fabric.rung, max(seconds, WAKING_SECONDS)
        if fabric.hot:
            self.polling.spin(fabric.pending, seconds, seconds)

    def endTurn(self) -> None:
        """
        Serve no more batches in this turn: a call is due in the next.
        """
        self._enough = True

    def _wantTurn(self) -> None:
        # One wake-up per turn, however many calls of the application ask for it.
        if not (self.polled or self._inTurn or self._wanted) and self._registered:
            self._wanted = True
            if not callSoon(self.reactor, self.turn):
                self.device.fabric.signal()

    def deadline(self) -> float | None:
        if not self._registered:
            return None
        deadline = self.device.deadline()
        if self._closing:
            closing = next(iter(self._closing.values()))
            return closing if deadline is None else min(deadline, closing)
        return deadline

    def tick(self, now: float) -> None:
        self._guarded(self._expireClosing, now)
        self._guarded(self.device.tick, now)
        if self._registered and not self.users and not self.attempts:
            self._leave()

    def schedule(self) -> None:
        """
        Have one delayed call for the device's next deadline, or none.
        """
        if not self._registered:
            return
        self._expireClosing(self.now())
        deadline = None
        if self.users or self.attempts or self.device.fabric.unsent():
            # A delayed call shows in getDelayedCalls().  Half-closed connections that a program left behind,
            # which over TCP the kernel keeps, have one only while another connection reads.
            shows = self._closing and any(getattr(user, "reading", False) for user in self.users)
            deadline = self.deadline() if shows else self.device.deadline()
        if deadline is None:
            self._cancelTimer()
            return
        timer = self._timer
        delay = max(0.0, deadline - self.now())
        if timer is not None and timer.active():
            # Too early is harmless, and cheaper than a reset for each message.
            if timer.getTime() <= self.reactor.seconds() + delay:
                return
            timer.reset(delay)
        else:
            self._timer = self.reactor.callLater(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._guarded(self.device.tick, self.now())
        self._wantTurn()
        self.schedule()

    def connectionLost(self, reason: Failure) -> None:
        # A copy, as each user releases itself; one that raises must not spare the others.
        for user in [*self.users, *self.attempts]:
            try:
                user.connectionLost(reason)
            except BaseException:
                self._log.failure("a user of {name}", name=self.device.name)
        if self._registered:
            self._leave()

    def close(self) -> None:
        """
        Close the device: the reactor has stopped.
        """
        self.connectionLost(Failure(ConnectionLost()))
        # Resets and DREQs of the connections that have just ended must leave.
        self._guarded(self._serve)
        self.leave()
        self.device.close()

    def leave(self) -> None:
        """
        Leave the reactor, whatever users remain.
        """
        if self._registered:
            self._unregister()
        if self._visible:
            self._visible = False
            self.reactor.unwatchChannel(self)


#: Called with each channel that is opened: what layers above have on a device from its beginning.
onOpened: list[Callable[[DeviceChannel], object]] = []
#: The reactors that have channels.
_reactors: WeakSet[IReactorTime] = WeakSet()


def _channelsIn(reactor: IReactorTime) -> dict[str, DeviceChannel]:
    channels: dict[str, DeviceChannel] | None = getattr(reactor, readers.CHANNELS, None)
    if channels is None:
        channels = {}
        setattr(reactor, readers.CHANNELS, channels)
        _reactors.add(reactor)
    return channels


def channelFor(
    reactor: IReactorTime, name: str | None = None, bound: str = "", peer: str = ""
) -> DeviceChannel:
    """
    Return the channel of a device in a reactor.

    The device is opened at the first call, in the calling thread, which must be the reactor's; it closes when
    the reactor has stopped.

    @param name: The device's name; L{None} for the default.
    @param bound: The address that the user binds, or empty; and
    @param peer: the address that the user connects to, or empty.  By these a device with an address of its
        own is opened that was not added, one for each address (L{place
        <twisted_ib.hca.device.registry.place>}).
    @raise UnknownDeviceError: there is no such device.
    @raise DeviceError: it cannot be opened, as another process has its address.
    @raise RunDirectoryError: the run directory cannot be used.
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
            for call in onOpened:
                call(channel)
            # After shutdown: stopListening() and loseConnection() of triggers before and during it still need
            # the device.
            channel.reactor.addSystemEventTrigger("after", "shutdown", _close, channel)
    return channel


def _close(channel: DeviceChannel) -> None:
    try:
        channel.close()
    except HCAError:
        channel.count("close_failed")


class _Removal:
    """
    Closes a removed device in each reactor that has it.
    """

    def deviceAdded(self, name: str) -> None:
        pass  # A device is opened when it is needed, and closed when it is gone.

    deviceGoing = deviceAdded

    def deviceGone(self, name: str) -> None:
        for reactor in members(_reactors):
            channel = _channelsIn(reactor).get(name)
            if channel is None or channel.device.closed:
                continue
            gone = DeviceClosedError(f"device {name} was removed")
            # Any thread may remove a device, but only its own may touch it.
            if channel.device.thread == get_ident():
                _remove(channel, gone)
            else:
                channel.reactor.callFromThread(_remove, channel, gone)


def _remove(channel: DeviceChannel, gone: HCAError) -> None:
    # First the attempts to connect, which may choose another device, then the connections, so that their
    # peers see them as lost, then the ports.
    for attempt in list(channel.attempts):
        attempt.failIfNotConnected(ConnectError(string=str(gone)))
    channel.leave()
    channel.device.close()
    channel.connectionLost(Failure(ConnectionLost(str(gone))))


_removal = _Removal()
watchDevices(_removal)
