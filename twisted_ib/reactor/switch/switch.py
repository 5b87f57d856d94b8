"""
The offload protocol switch: SDP where both ends have it, TCP where not.

C{listenTCP} and C{connectTCP} of the C{ib} reactor come here, unless policy
(L{twisted_ib.reactor.rules.policy}) leaves everything to TCP.  L{direct} gives the operating system's own
calls, L{explain} says why a connection or a port goes the way it does.
"""

from __future__ import annotations

import sys
from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from twisted.logger import Logger
from twisted.python import threadable

from twisted_ib.errors import DeviceError, HCAError, WrongThreadError
from twisted_ib.hca.device.registry import addDevice, addedDevices, fabricOf, removeDevice, watchDevices
from twisted_ib.internet.addresses import withPort
from twisted_ib.reactor.rules.parser import CONNECT, LISTEN, SDP, TCP
from twisted_ib.reactor.switch.reason import EXPLICIT, Fallback, Reason

if TYPE_CHECKING:
    from twisted_ib.hca.device.tcpcounterparts import Counterpart
    from twisted_ib.reactor.rules.policy import Policy
    from twisted_ib.reactor.switch.bypass import Direct
    from twisted_ib.reactor.switch.candidates import Candidate, Candidates
    from twisted_ib.reactor.switch.connecting import SwitchedClient, SwitchedConnector
    from twisted_ib.reactor.switch.listening import SwitchedPort

#: The longest place of a rule in the name of such a counter.
SWITCH_COUNTER_NAME = 96

#: libsdp's level of the log for what became of a listen or a connect.
_SUMMARY = 7
#: How deep transports are looked for in others.
_DEPTH = 16


class Switch:
    """
    The switch of one reactor.

    @ivar configuration: Which rules hold.
    @ivar counters: How often which rule was followed (C{switch_rule_WHERE}), and why SDP did not carry
        something (C{switch_fallback_KIND}).
    @ivar ports: The ports that listen.
    @ivar clients: The connections that TCP carries.
    @ivar beginning: Those who try SDP in the next turn; nothing else of a reactor knows them yet.
    """

    _log = Logger()

    def __init__(self, configuration: Any) -> None:
        """
        @param configuration: A L{twisted_ib.reactor.rules.configuration.Configuration}.
        """
        self.configuration = configuration
        self.counters: Counter[str] = Counter()
        self.ports: WeakSet[SwitchedPort] = WeakSet()
        self.clients: WeakSet[SwitchedClient] = WeakSet()
        self.beginning: set[SwitchedClient] = set()
        self._candidates: Candidates | None = None
        self._applied: Policy | None = None
        self._direct: Reason | None = None
        self._directBy: Policy | None = None
        configuration.onChange(self._changed)
        watchDevices(self)

    # -- the two calls

    def load(self, role: str) -> None:
        """
        Import what a call needs.

        @param role: C{listen} or C{connect}.
        @raise ImportError: That is not possible.
        """
        if role == LISTEN:
            import twisted_ib.reactor.switch.listening
        else:
            import twisted_ib.reactor.switch.candidates
            import twisted_ib.reactor.switch.connecting  # noqa: F401

    def listenTCP(self, reactor: Any, port: Any, factory: Any, backlog: int, interface: str) -> SwitchedPort:
        """
        See C{IReactorTCP}.
        """
        from twisted_ib.reactor.switch.listening import SwitchedPort

        made = SwitchedPort(self, port, factory, backlog, interface, reactor)
        made.startListening()
        return made

    def connectTCP(
        self, reactor: Any, host: Any, port: Any, factory: Any, timeout: Any, bindAddress: Any
    ) -> SwitchedConnector:
        """
        See C{IReactorTCP}.
        """
        from twisted_ib.reactor.switch.connecting import SwitchedConnector

        made = SwitchedConnector(self, host, port, factory, timeout, bindAddress, reactor)
        made.connect()
        return made

    # -- where TCP is certain

    def listensDirect(self, port: Any) -> None:
        """
        Write down why a port of the operating system's listens.
        """
        address = port.getHost()
        decision = self.decide(LISTEN, address.host, address.port)
        now = port.reactor.seconds()
        port.why = why = Reason(decision.where, decision.verdict, TCP, asked=now, decided=now, connected=now)
        self.settled(LISTEN, why, address.host, address.port)

    def whyDirect(self, host: Any, port: Any) -> Reason:
        """
        Say why a connection is the operating system's; one object for all, if one rule is for all.
        """
        policy = self.configuration.policy
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
        What looks for ways to connect.
        """
        candidates = self._candidates
        if candidates is None:
            from twisted_ib.reactor.switch.candidates import Candidates

            candidates = self._candidates = Candidates()
        return candidates

    # -- decisions

    def decide(self, role: str, host: str, port: int) -> Any:
        """
        Ask the rules, and count.
        """
        decision = self.configuration.decide(role, host, port)
        where = decision.where
        if not where.isascii():
            where = where.encode("ascii", "backslashreplace").decode()
        # The end of it has the line, and the name of a folder may be long.
        self.counters[f"switch_rule_{where[-SWITCH_COUNTER_NAME:]}"] += 1
        return decision

    def fellBack(self, why: Reason, fallback: Fallback) -> None:
        """
        SDP does not carry something: write down why, and count.
        """
        why.fallback = fallback
        self.counters[f"switch_fallback_{fallback.kind}"] += 1

    def settled(self, role: str, why: Reason, host: str, port: int) -> None:
        """
        It is known what carries something.
        """
        self.configuration.log(_SUMMARY, f"{role} {withPort(host, port)}: {why}")

    def seconds(self, verdict: str, timeout: float | None) -> float | None:
        """
        @param verdict: That of the rules.
        @param timeout: What the application gives the whole connect.
        @return: How long SDP may take; L{None} if that is all of it.
        """
        if verdict == SDP:
            return None
        most: float = self.configuration.policy.timeouts.sdp
        return most if timeout is None else min(most, timeout / 3)

    def waysTo(self, reactor: Any, verdict: str, host: str, port: int) -> list[Candidate] | Fallback | None:
        """
        Find the ways to a peer over SDP.

        @param verdict: That of the rules.
        @return: The ways, or why there is none; L{None} if the rules want none.
        """
        if verdict == TCP:
            return None
        devices = self.devicesFor(host)
        if verdict == SDP:
            found = self.candidates.anywhere(devices, port)
        else:
            retry = self.configuration.policy.timeouts.retry
            found = self.candidates.here(devices, host, port, reactor.seconds(), retry)
        if not isinstance(found, Fallback):
            try:
                self.checkThread(reactor, found[0].device)
            except HCAError as e:
                return Fallback("thread", str(e))
        return found

    def stands(self, device: str, host: str, port: int, counterpart: Counterpart) -> bool:
        """
        @return: Whether somebody offers SDP as before.
        """
        return self.candidates.stands(device, host, port, counterpart)

    def remember(self, reactor: Any, host: str, port: int, counterpart: Counterpart) -> None:
        """
        SDP to somebody has failed: do not try for a while.
        """
        self.candidates.failures.add(host, port, counterpart, reactor.seconds())

    # -- devices

    def devicesFor(self, host: str) -> tuple[str, ...]:
        """
        @return: The devices that serve an address, in order: those that policy names, and without
            routes those that the program has added.
        """
        policy = self.configuration.policy
        if policy is not self._applied:
            self._apply(policy)
        found: tuple[str, ...] = policy.devicesFor(host)
        if policy.contents is None or not policy.contents.routes:
            found += tuple(name for name in addedDevices() if name not in found)
        return tuple(name for name in found if fabricOf(name) is not None)

    def _apply(self, policy: Policy) -> None:
        """
        Have the devices that policy names, and no more those that it named before.
        """
        before, self._applied = self._applied, policy
        named = {device.name: device for device in policy.devices}
        for device in () if before is None else before.devices:
            if device.name not in named and device.name in addedDevices():
                removeDevice(device.name)
        for device in named.values():
            try:
                addDevice(device.name, device.fabric, device.address)
            except DeviceError as e:
                self._log.error("{where}: {reason}", where=device.where, reason=str(e))

    def _changed(self, old: Policy, new: Policy) -> None:
        if self._applied is not None:
            self._apply(new)

    def deviceAdded(self, name: str) -> None:
        """
        There is a new device: ports listen on it, too.
        """
        self._eachPort("deviceAdded", name)

    def deviceGoing(self, name: str) -> None:
        """
        A device goes: no port listens on it any more.
        """
        self._eachPort("deviceGoing", name)

    def deviceGone(self, name: str) -> None:
        """
        A device has gone.
        """

    def _eachPort(self, method: str, name: str) -> None:
        """
        Tell the ports, in the thread that they belong to.
        """
        for port in list(self.ports):
            reactor = port.reactor
            if reactor.running and threadable.ioThread not in (None, get_ident()):
                reactor.callFromThread(getattr(port, method), name)
            else:
                getattr(port, method)(name)

    def checkThread(self, reactor: Any, device: str) -> None:
        """
        Let a device be used in the reactor's thread only, which before the reactor runs may be any.

        @raise WrongThreadError: this is another.
        """
        thread = get_ident()
        for channel in _channelsOf(reactor):
            if channel.device.name == device and not channel.device.closed:
                if channel.device.thread != thread:
                    raise WrongThreadError(f"{device} belongs to another thread")
                return
        if reactor.running and threadable.ioThread not in (None, thread):
            raise WrongThreadError("this is not the reactor's thread")

    def opened(self, reactor: Any, device: str) -> None:
        """
        A device is used.  Before the reactor runs nobody knows in which thread it will.
        """
        for channel in _channelsOf(reactor):
            if channel.device.name == device and channel.device.countersBeside is not self.counters:
                channel.device.countersBeside = self.counters
                if not reactor.running:
                    reactor.callWhenRunning(self._adopt, channel)

    def _adopt(self, channel: Any) -> None:
        """
        The reactor runs in this thread: so do its devices.  A program may have forked meanwhile; then
        its ports listen on devices of its own.
        """
        device = channel.device
        if not device.closed:
            device.thread = get_ident()
            return
        for port in list(self.ports):
            if port.reactor is channel.reactor:
                port.deviceGoing(device.name)
                port.deviceAdded(device.name)

    def listening(self, port: SwitchedPort) -> None:
        """
        A port listens.
        """
        self.ports.add(port)
        address = port.getHost()
        self.settled(LISTEN, port.why, address.host, address.port)

    def accepted(self, why: Reason, channel: Any) -> Reason:
        """
        @param why: That of a port.
        @return: That of a connection over SDP which it has accepted.
        """
        now = channel.reactor.seconds()
        return Reason(why.rule, why.verdict, SDP, channel.device.name, None, now, now, now)


def _channelsOf(reactor: Any) -> list[Any]:
    """
    @return: The devices that are open in a reactor.
    """
    module = sys.modules.get("twisted_ib.internet.channel")
    return [] if module is None else list(module.channelsOf(reactor))


def direct(reactor: Any) -> Direct:
    """
    Go around the switch: see L{twisted_ib.reactor.switch.bypass.direct}.

    @param reactor: Any reactor with C{IReactorTCP}.
    @return: The same with the operating system's own C{listenTCP} and C{connectTCP}.
    """
    from twisted_ib.reactor.switch.bypass import direct

    return direct(reactor)


def whyOf(thing: Any) -> Reason | None:
    """
    @param thing: A transport, a port or a connector; TLS and other wrappers are looked through.
    @return: Why it goes the way it goes; L{None} if no switch has seen it.
    """
    for _ in range(_DEPTH):
        why = getattr(thing, "why", None)
        if isinstance(why, Reason):
            return why
        for name in ("server", "connector"):
            why = getattr(getattr(thing, name, None), "why", None)
            if isinstance(why, Reason):
                return Reason(why.rule, why.verdict, TCP, None, why.fallback)
        thing = getattr(thing, "transport", None)
        if thing is None:
            return None
    return None


def explain(transport: Any) -> Reason:
    """
    Say why a connection or a port goes the way it goes.

    @param transport: A transport, a port or a connector; TLS and other wrappers are looked through.
    @return: The reason; C{explicit} for what did not go through a switch.
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
