"""
The offload protocol switch: SDP where both ends have it, TCP where not.

C{listenTCP} and C{connectTCP} of the C{ib} reactor call it, unless the rules
(L{twisted_ib.switch.rules.policy}) leave everything to TCP.  L{direct} returns the operating system's own
calls, L{explain} the reason of a decision.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet

from twisted.internet.tcp import Server
from twisted.logger import Logger

from twisted_ib.configuration.words import CONNECT, LISTEN, SDP, TCP
from twisted_ib.drive.process import members
from twisted_ib.errors import DeviceError, HCAError, WrongThreadError
from twisted_ib.hca.device.registry import (
    addDevice,
    addedDevices,
    fabricOf,
    removeDevice,
    traitsOf,
    watchDevices,
)
from twisted_ib.internet.addressing.addresses import withPort
from twisted_ib.internet.readers import channelsOf
from twisted_ib.switch.reason import EXPLICIT, UNASKED, Fallback, Reason, carried, kept, withdrawn

if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import socket

    from twisted.internet.base import ReactorBase
    from twisted.internet.interfaces import IProtocol, IReactorFDSet, IReactorTime
    from twisted.internet.tcp import Port

    from twisted_ib.hca.device.tcpcounterparts import Counterpart
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.bypass import Direct
    from twisted_ib.switch.candidates import Candidate, Candidates
    from twisted_ib.switch.connecting import Face, SwitchedClient, SwitchedConnector
    from twisted_ib.switch.listeners import PortListeners
    from twisted_ib.switch.listening import SwitchedPort
    from twisted_ib.switch.rules.configuration import Configuration
    from twisted_ib.switch.rules.policy import Decision, Policy
    from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer

    class _Report(Protocol):
        def showSocket(self, skt: socket, why: Reason) -> None: ...

    class _Reactor(Protocol):
        socketReport: _Report

        def showTCP(self, user: object) -> None: ...

    class _User(Protocol):
        @property
        def reactor(self) -> object: ...


#: Characters of a rule's place in the name of its counter.
SWITCH_COUNTER_NAME = 96

#: Fallbacks, by peer and kind, that are not logged again; beyond it the oldest is forgotten.
FALLBACKS_LOGGED = 1024

#: libsdp's log level of a finished listen or connect.
_SUMMARY = 7
#: How many wrapped transports are looked through; a cycle must not hang.
_DEPTH = 16


def _counterOf(where: str) -> str:
    # The name of the counter of a rule, by where that stands.
    if not where.isascii():
        where = where.encode("ascii", "backslashreplace").decode()
    # Cut at the front: the line number is at the end, and the name of a folder may be long.
    return f"switch_rule_{where[-SWITCH_COUNTER_NAME:]}"


class Switch:
    """
    The switch of one reactor: see L{IReactorTCP<twisted.internet.interfaces.IReactorTCP>} and
    L{IReactorSocket<twisted.internet.interfaces.IReactorSocket>}.

    @ivar configuration: The source of the rules.
    @ivar counters: How often each rule decided (C{switch_rule_WHERE}), and why SDP did not carry connections
        (C{switch_fallback_KIND}).
    @ivar ports: The listening ports.
    @ivar clients: The connections over TCP.
    @ivar openCandidates: The search for SDP listeners, if there was one.
    @ivar beginning: Faces whose attempt over SDP begins in the next turn; no list of the reactor has them
        yet.
    """

    _log = Logger()

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.counters: Counter[str] = Counter()
        self.ports: WeakSet[PortListeners] = WeakSet()
        self.clients: WeakSet[SwitchedClient] = WeakSet()
        self.beginning: set[Face] = set()
        self.openCandidates: Candidates | None = None
        self._logged: dict[tuple[str, int, str], None] = {}
        self._applied: Policy | None = None
        self._direct: Reason | None = None
        self._directBy: Policy | None = None
        configuration.onChange(self._changed)
        watchDevices(self)

    # -- listenTCP and connectTCP

    @classmethod
    def load(cls, role: str) -> None:
        """
        Import the modules of a call.

        @param role: C{listen} or C{connect}.
        @raise ImportError: they cannot be loaded.
        """
        if role == LISTEN:
            import twisted_ib.switch.listening
        else:
            import twisted_ib.switch.candidates
            import twisted_ib.switch.connecting  # noqa: F401

    def listenTCP(
        self, reactor: ReactorBase, port: Any, factory: Any, backlog: int, interface: str
    ) -> SwitchedPort:
        from twisted_ib.switch.listening import SwitchedPort

        made = SwitchedPort(self, port, factory, backlog, interface, reactor)
        made.startListening()
        return made

    def adoptStreamPort(
        self, reactor: ReactorBase, descriptor: int, family: Any, factory: Any
    ) -> SwitchedPort:
        from twisted_ib.switch.listening import SwitchedPort

        made = SwitchedPort.adopt(self, reactor, descriptor, family, factory)
        made.startListening()
        return made

    def connectTCP(
        self, reactor: ReactorBase, host: Any, port: Any, factory: Any, timeout: Any, bindAddress: Any
    ) -> SwitchedConnector:
        from twisted_ib.switch.connecting import SwitchedConnector

        made = SwitchedConnector(self, host, port, factory, timeout, bindAddress, reactor)
        made.connect()
        return made

    # -- rules that leave everything to TCP

    def listensDirect(self, port: Any) -> None:
        """
        Record the decision for a port of the operating system's TCP.
        """
        address = port.getHost()
        decision = self.decide(LISTEN, address.host, address.port)
        now = port.reactor.seconds()
        port.why = why = Reason(decision.where, decision.verdict, TCP, asked=now, decided=now, connected=now)
        port.transport = partial(acceptedTCP, why)
        self.settled(LISTEN, why, address.host, address.port)
        self.shown(port)

    def whyServed(self, skt: socket) -> Reason:
        """
        Return the decision for a socket that listens by the operating system's TCP.
        """
        own: tuple[str, int] = skt.getsockname()[:2]
        decision = self.configuration.decide(LISTEN, *own)
        return Reason(decision.where, decision.verdict, TCP)

    def connectsDirect(self, host: str, port: int) -> Reason:
        """
        Return the decision for a connector of the operating system's TCP, and count the connection.
        """
        why = self.whyDirect(host, port)
        # Not once it is established: Twisted's own connector says so to its factory alone.
        carried(TCP, why)
        return why

    def whyDirect(self, host: Any, port: Any) -> Reason:
        """
        Return the decision for a connection of the operating system's TCP.
        """
        policy = self.configuration.policy
        # One object for all connections if one rule decides for all: they cost nothing then.
        if policy is not self._directBy:
            decision = policy.certain(CONNECT, self.configuration.program)
            self._direct = None if decision is None else Reason(decision.where, decision.verdict, TCP)
            self._directBy = policy
        if self._direct is not None:
            return self._direct
        decision = self.decide(CONNECT, host, port)
        return Reason(decision.where, decision.verdict, TCP)

    @property
    def candidates(self) -> Candidates:
        """
        The search for SDP listeners.
        """
        candidates = self.openCandidates
        if candidates is None:
            from twisted_ib.switch.candidates import Candidates

            candidates = self.openCandidates = Candidates()
        return candidates

    def learn(self, channels: Iterable[DeviceChannel]) -> None:
        """
        Leave the ports of blocking sockets' connections that stand and gain nothing to TCP, for a time.
        """
        if self.openCandidates is not None and self.configuration.policy.timeouts.short:
            for each in self.openCandidates.gainless.look(channels):
                each.sleeps()

    # -- decisions

    def decide(self, role: str, host: str, port: int) -> Decision:
        """
        Apply the rules, and count.
        """
        decision = self.configuration.decide(role, host, port)
        self.counters[_counterOf(decision.where)] += 1
        return decision

    def fellBack(self, why: Reason, fallback: Fallback, host: str, port: int) -> None:
        """
        Record why SDP does not carry a connection, and count; log it once for a peer and kind of reason.
        """
        why.fallback = fallback
        counter = f"switch_fallback_{fallback.kind}"
        self.counters[counter] += 1
        gainless = None if self.openCandidates is None else self.openCandidates.gainless
        if gainless is not None and fallback in gainless.reasons and not self.configuration.logs(_SUMMARY):
            seconds = self.configuration.policy.timeouts.short
            gainless.decided((host, port), why, seconds, self.counters, _counterOf(why.rule), counter)
        key = host, port, fallback.kind
        if why.verdict == SDP or fallback.kind in UNASKED or key in self._logged:
            return
        if len(self._logged) == FALLBACKS_LOGGED:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = None
        self._log.info("{where} goes over TCP: {reason}", where=withPort(host, port), reason=fallback.text)

    def moved(
        self,
        end: RedirectedServer | RedirectedClient,
        why: Fallback,
        address: tuple[str, int],
        skt: socket,
    ) -> None:
        """
        A connection over SDP has moved to TCP: count it, and show it, as one.

        @param end: Its transport over SDP.
        @param address: Of the listener.
        @param skt: The socket of TCP, as long as which it is shown.
        """
        decision = end.why
        decision.provider, decision.device = TCP, None
        self.fellBack(decision, why, *address)
        withdrawn(decision)
        kept[skt] = decision
        cast("_Reactor", end.reactor).socketReport.showSocket(skt, decision)

    def settled(self, role: str, why: Reason, host: str, port: int) -> None:
        """
        Log which provider carries a connection or port.
        """
        if self.configuration.logs(_SUMMARY):
            self.configuration.log(_SUMMARY, f"{role} {withPort(host, port)}: {why}")

    def seconds(self, verdict: str, timeout: float | None) -> float | None:
        """
        Return the seconds that SDP may take; L{None} for the whole timeout.

        @param timeout: The application's for the whole connect.
        """
        if verdict == SDP:
            return None
        # At most a third of a short timeout, so that TCP still has the time to repeat its SYN, which it does
        # after 1 s (RFC 6298 section 2).
        most: float = self.configuration.policy.timeouts.sdp
        return most if timeout is None else min(most, timeout / 3)

    def candidatesFor(
        self, reactor: ReactorBase, verdict: str, host: str, port: int, blocks: bool = False
    ) -> list[Candidate] | Fallback | None:
        """
        Return the SDP candidates for a peer, or why there is none; L{None} if the rules want TCP.

        @param blocks: Whether it is for a blocking socket, which does not always gain.
        """
        if verdict == TCP:
            return None
        try:
            candidates = self.candidates
        except (ImportError, OSError, MemoryError) as e:
            # In a chroot, or without a descriptor left.
            return Fallback("unloadable", str(e))
        # Under C{sdp} there is no fallback, so SDP is tried whoever serves the port.  Under C{both} SDP must
        # reach the same server as TCP would.
        if verdict == SDP:
            found = candidates.anywhere(self.devicesFor(host), port)
        else:
            timeouts, now = self.configuration.policy.timeouts, reactor.seconds()
            # Before the search, which has most of the system calls that the rule saves.
            gainless = candidates.gainless.holds(host, port, now, timeouts.short) if blocks else None
            found = gainless or candidates.here(self.devicesFor(host), host, port, now, timeouts.retry)
        if not isinstance(found, Fallback):
            try:
                self.checkThread(reactor, found[0].device)
            except HCAError as e:
                return Fallback("thread", str(e))
        return found

    def stands(self, device: str, host: str, port: int, counterpart: Counterpart) -> bool:
        """
        Return whether a server offers SDP as before.
        """
        return self.candidates.stands(device, host, port, counterpart)

    def remember(self, reactor: ReactorBase, host: str, port: int, counterpart: Counterpart) -> None:
        """
        Record that SDP to a server failed: it is not tried for a while.
        """
        # Each connect to it would wait for the same timeout before TCP.
        self.candidates.failures.add(host, port, counterpart, reactor.seconds())

    # -- devices

    def devicesFor(self, host: str) -> tuple[str, ...]:
        """
        Return the devices for an address in order: those of the policy, and without routes those that the
        program added, but for those that are used by name alone.
        """
        policy = self.configuration.policy
        if policy is not self._applied:
            self._apply(policy)
        found: tuple[str, ...] = policy.devicesFor(host)
        if policy.contents is None or not policy.contents.routes:
            added = (name for name in addedDevices() if traitsOf(name).joinsWildcards)
            found += tuple(name for name in added if name not in found)
        return tuple(name for name in found if fabricOf(name) is not None)

    def _apply(self, policy: Policy) -> None:
        # Devices that the old file named and the new one does not; those that the program added itself stay.
        before, self._applied = self._applied, policy
        named = {device.name: device for device in policy.devices}
        for device in () if before is None else before.devices:
            if device.name not in named and device.name in addedDevices():
                removeDevice(device.name)
        for device in named.values():
            try:
                addDevice(device.name, device.fabric, device.address, **dict(device.options))
            except DeviceError as e:
                self._log.error("{where}: {reason}", where=device.where, reason=str(e))

    def _changed(self, old: Policy, new: Policy) -> None:
        if self.openCandidates is not None:
            self.openCandidates.gainless.changed()
        if self._applied is not None:
            self._apply(new)

    def deviceAdded(self, name: str) -> None:
        """
        A device was added: ports listen on it, too.
        """
        self._eachPort("deviceAdded", name)

    def deviceGoing(self, name: str) -> None:
        """
        A device will be removed: ports stop listening on it.
        """
        self._eachPort("deviceGoing", name)

    def deviceGone(self, name: str) -> None:
        """
        Do nothing.
        """

    def _eachPort(self, method: str, name: str) -> None:
        for port in members(self.ports):
            reactor: Any = port.reactor
            # Any thread may add or remove a device; ports belong to the reactor's.
            if reactor.inOtherThread():
                reactor.callFromThread(getattr(port, method), name)
            else:
                getattr(port, method)(name)

    def checkThread(self, reactor: Any, device: str) -> None:
        """
        Check that a device is used in the reactor's thread, which is any before the reactor runs.

        @raise WrongThreadError: this is another.
        """
        thread = get_ident()
        for channel in channelsOf(reactor):
            if channel.device.name == device and not channel.device.closed:
                if channel.device.thread != thread:
                    raise WrongThreadError(f"{device} belongs to another thread")
                return
        if reactor.inOtherThread():
            raise WrongThreadError("this is not the reactor's thread")

    def opened(self, reactor: ReactorBase, device: str) -> None:
        """
        A device is used by this switch: show its counters there.
        """
        for channel in channelsOf(reactor):
            if channel.device.name == device and channel.device.countersBeside is not self.counters:
                channel.device.countersBeside = self.counters
                # Before that nobody knows in which thread the reactor will run.
                if not reactor.running:
                    reactor.callWhenRunning(self._adopt, channel)

    def _adopt(self, channel: DeviceChannel) -> None:
        device = channel.device
        # A daemon forks between listenTCP() and run().  The parent's device is closed in the child; then the
        # ports listen on the child's own.
        if not device.closed:
            device.thread = get_ident()
            return
        for port in members(self.ports):
            if port.reactor is channel.reactor:
                port.deviceGoing(device.name)
                port.deviceAdded(device.name)

    def listening(self, port: Any) -> None:
        """
        Record that a port listens.
        """
        self.ports.add(port)
        address = port.getHost()
        self.settled(LISTEN, port.why, address.host, address.port)
        self.shown(port)

    def shown(self, user: _User) -> None:
        """
        Have C{ib-ss} show the reason of a port or connection over TCP.
        """
        cast("_Reactor", user.reactor).showTCP(user)

    def accepted(self, why: Reason, channel: DeviceChannel) -> Reason:
        """
        Return the decision for a connection over SDP that a port accepted.

        @param why: The port's.
        """
        carried(SDP, why)
        now = channel.reactor.seconds()
        return Reason(why.rule, why.verdict, SDP, channel.device.name, None, now, now, now)


def acceptedTCP(
    why: Reason,
    skt: socket,
    protocol: IProtocol,
    client: tuple[object, ...],
    server: Port,
    sessionno: int,
    reactor: IReactorFDSet,
) -> Server:
    """
    Return the transport of a connection that a port of Twisted's has accepted, and count that.

    @param why: The port's.
    """
    carried(TCP, why)
    return Server(skt, protocol, client, server, sessionno, reactor)


def direct(reactor: IReactorTime) -> Direct:
    """
    Return a reactor without the switch: see L{twisted_ib.switch.bypass.direct}.

    @param reactor: Provides C{IReactorTCP}.
    """
    from twisted_ib.switch.bypass import direct

    return direct(reactor)


def whyOf(thing: Any) -> Reason | None:
    """
    Return the decision for a transport, port or connector; L{None} if no switch has seen it.

    TLS and other wrappers are looked through.
    """
    for _ in range(_DEPTH):
        why = getattr(thing, "why", None)
        if isinstance(why, Reason):
            return why
        for name in ("server", "connector"):
            why = getattr(getattr(thing, name, None), "why", None)
            if isinstance(why, Reason):
                # A transport of Twisted's own, made by a port or connector of the switch: TCP carries it.
                return Reason(why.rule, why.verdict, TCP, None, why.fallback)
        # A transport or stream writer of asyncio's, TLS included.
        info = getattr(thing, "get_extra_info", None)
        why = None if info is None else info("why")
        if isinstance(why, Reason):
            return why
        thing = getattr(thing, "transport", None)
        if thing is None:
            return None
    return None


def explain(transport: Any) -> Reason:
    """
    Return the decision for a transport, port or connector; C{explicit} if no switch has seen it.

    TLS and other wrappers are looked through.
    """
    why = whyOf(transport)
    if why is not None:
        return why
    for _ in range(_DEPTH):
        provider = getattr(transport, "provider", None)
        if isinstance(provider, str):
            device = getattr(getattr(transport, "channel", None), "device", None)
            return Reason(EXPLICIT, provider, provider, getattr(device, "name", None))
        inner = getattr(transport, "transport", None)
        if inner is None:
            break
        transport = inner
    return Reason(EXPLICIT, TCP, TCP)


__all__ = ["Switch", "direct", "explain", "whyOf"]
