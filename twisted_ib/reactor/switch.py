"""
The offload protocol switch: SDP where both ends have it, TCP where not.

C{listenTCP} and C{connectTCP} of the C{ib} reactor come here, unless policy
(L{twisted_ib.reactor.policy}) leaves everything to TCP.  L{direct} gives the operating system's own
calls, L{explain} says why a connection or a port goes the way it does.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from threading import get_ident
from typing import Any
from weakref import WeakSet

from twisted.python import threadable

from twisted_ib import limits
from twisted_ib.errors import HCAError, WrongThreadError
from twisted_ib.hca.channel import channelFor, channelsOf
from twisted_ib.hca.endpoints.addresses import reachable, scopeOf, withPort
from twisted_ib.hca.fabric.addresses import isLocalAddress
from twisted_ib.hca.fabric.beside import Beside, Counterpart
from twisted_ib.reactor import sockdiag
from twisted_ib.reactor.connecting import Candidate, SwitchedConnector
from twisted_ib.reactor.listening import Companion, SwitchedPort
from twisted_ib.reactor.rules import SDP, TCP
from twisted_ib.reactor.why import EXPLICIT, Fallback, Why
from twisted_ib.sdp.handshake import serviceID


class Switch:
    """
    The switch of one reactor.

    @ivar configuration: Which rules hold.
    @ivar counters: How often which rule was followed (C{rule FILE:LINE}), and why SDP did not carry
        something (C{fallback KIND}).
    @ivar ports: The ports that listen.
    """

    def __init__(self, configuration: Any) -> None:
        """
        @param configuration: A L{twisted_ib.reactor.configuration.Configuration}.
        """
        self.configuration = configuration
        self.counters: Counter[str] = Counter()
        self.ports: WeakSet[SwitchedPort] = WeakSet()
        self._beside = Beside()
        self._failed: dict[tuple[str, int, Counterpart], float] = {}

    # -- the two calls

    def listenTCP(self, reactor: Any, port: Any, factory: Any, backlog: int, interface: str) -> SwitchedPort:
        """
        See C{IReactorTCP}.
        """
        made = SwitchedPort(self, port, factory, backlog, interface, reactor)
        made.startListening()
        return made

    def connectTCP(
        self, reactor: Any, host: Any, port: Any, factory: Any, timeout: Any, bindAddress: Any
    ) -> SwitchedConnector:
        """
        See C{IReactorTCP}.
        """
        made = SwitchedConnector(self, host, port, factory, timeout, bindAddress, reactor)
        made.connect()
        return made

    # -- decisions

    def decide(self, role: str, host: str, port: int) -> Any:
        """
        Ask the rules, and count.
        """
        decision = self.configuration.decide(role, host, port)
        self.counters[f"rule {decision.where}"] += 1
        return decision

    def fellBack(self, why: Why, fallback: Fallback) -> None:
        """
        SDP does not carry something: write down why, and count.
        """
        why.fallback = fallback
        self.counters[f"fallback {fallback.kind}"] += 1

    def devicesFor(self, host: str) -> tuple[str, ...]:
        """
        @return: The devices that serve an address, in order.
        """
        found: tuple[str, ...] = self.configuration.policy.devicesFor(host)
        return found

    def seconds(self, decision: Any, timeout: float | None) -> float:
        """
        @param timeout: What the application gives the whole connect.
        @return: How long SDP may take.
        """
        most: float = self.configuration.policy.timeouts.sdp
        if timeout is None:
            return most
        return timeout if decision.verdict == SDP else min(most, timeout / 3)

    def waysTo(self, client: Any, decision: Any, host: str, port: int) -> list[Candidate] | Fallback | None:
        """
        Find the ways to a peer over SDP.

        @return: The ways, or why there is none; L{None} if the rules want none.
        """
        if decision.verdict == TCP:
            return None
        target = reachable(host)
        if decision.verdict == SDP:
            devices = self.devicesFor(target)
            if not devices:
                return Fallback("no_device", "no device reaches it")
            return [Candidate(device, None) for device in devices]
        if target.partition("%")[0] != host.partition("%")[0] and ":" in host:
            return Fallback("mapped", f"{host} is an IPv4 address in IPv6")
        if not _isLocal(target, int(client.reactor.seconds())):
            return Fallback("remote", f"{host} is not an address of this host")
        return self._waysHere(client, target, port)

    def _waysHere(self, client: Any, host: str, port: int) -> list[Candidate] | Fallback:
        """
        Find the ways to a port of this host, which must end where TCP's does.
        """
        try:
            found = [
                Candidate(device, each)
                for device in self.devicesFor(host)
                for each in self._counterparts(device, host, port)
            ]
        except (HCAError, OSError) as e:
            return Fallback("run_directory", str(e))
        if not found:
            return Fallback("no_listener", f"nobody offers SDP on {withPort(host, port)}")
        try:
            best = sockdiag.reached(sockdiag.listeners(port), host.partition("%")[0], scopeOf(host))
        except sockdiag.Unreadable as e:
            return Fallback("unknown_listener", f"who listens on {withPort(host, port)} is not known: {e}")
        owners = {each.inode: each.uid for each in best}
        found = [each for each in found if self._isTheSame(each.counterpart, owners)]
        if not found:
            return Fallback(
                "other_listener", f"who offers SDP on {withPort(host, port)} is not who listens on TCP"
            )
        now = client.reactor.seconds()
        found = [each for each in found if not self._isRemembered(host, port, each.counterpart, now)]
        if not found:
            return Fallback("remembered", f"SDP to {withPort(host, port)} has failed not long ago")
        try:
            self.checkThread(client.reactor, found[0].device)
        except HCAError as e:
            return Fallback("thread", str(e))
        return found

    def _counterparts(self, device: str, host: str, port: int) -> list[Counterpart]:
        """
        @return: Whom a device reaches for a port.
        """
        if device == "lo0":
            return self._beside.inThread(serviceID(port), host)
        return self._beside.inProcesses(serviceID(port), host)

    def _isTheSame(self, counterpart: Counterpart | None, owners: dict[int, int]) -> bool:
        """
        Whether who offers SDP is who has the TCP socket; of another user it is not enough that he says so.

        @param owners: By inode, the users of the sockets that TCP would reach.
        """
        assert counterpart is not None
        if counterpart.inode not in owners:
            return False
        return self._beside.isOurs(counterpart) or owners[counterpart.inode] == counterpart.uid

    def stands(self, device: str, host: str, port: int, counterpart: Counterpart) -> bool:
        """
        @return: Whether somebody offers SDP as before.
        """
        try:
            return counterpart in self._counterparts(device, reachable(host), port)
        except (HCAError, OSError):
            return False

    # -- who has failed

    def remember(self, host: str, port: int, counterpart: Counterpart) -> None:
        """
        SDP to somebody has failed: do not try for a while.
        """
        from time import monotonic

        failed = self._failed
        failed.pop((host, port, counterpart), None)
        if len(failed) >= limits.OFFLOADS_REMEMBERED:
            del failed[next(iter(failed))]
        failed[host, port, counterpart] = monotonic()

    def _isRemembered(self, host: str, port: int, counterpart: Counterpart | None, now: float) -> bool:
        """
        @return: Whether somebody has failed not long ago.
        """
        from time import monotonic

        assert counterpart is not None
        since = self._failed.get((host, port, counterpart))
        if since is None:
            return False
        if monotonic() - since < self.configuration.policy.timeouts.retry:
            return True
        del self._failed[host, port, counterpart]
        return False

    # -- devices

    def checkThread(self, reactor: Any, device: str) -> None:
        """
        Let a device be used in the reactor's thread only, which before the reactor runs may be any.

        @raise WrongThreadError: this is another.
        """
        thread = get_ident()
        for channel in channelsOf(reactor):
            if channel.device.name == device and not channel.device.closed:
                if channel.device.thread != thread:
                    raise WrongThreadError(f"{device} belongs to another thread")
                return
        if reactor.running and threadable.ioThread not in (None, thread):
            raise WrongThreadError("this is not the reactor's thread")

    def opened(self, reactor: Any, companion: Companion) -> None:
        """
        A companion listens.  Before the reactor runs nobody knows in which thread it will.
        """
        if not reactor.running:
            channel = channelFor(reactor, companion.device)
            reactor.callWhenRunning(_adopt, channel)

    def listening(self, port: SwitchedPort) -> None:
        """
        A port listens.
        """
        self.ports.add(port)

    def accepted(self, why: Why, channel: Any) -> Why:
        """
        @param why: That of a port.
        @return: That of a connection over SDP which it has accepted.
        """
        now = channel.reactor.seconds()
        return Why(why.rule, why.verdict, SDP, channel.device.name, None, now, now, now)


def _adopt(channel: Any) -> None:
    """
    The reactor runs in this thread: so do its devices.
    """
    channel.device.thread = get_ident()


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def _isLocal(address: str, second: int) -> bool:
    """
    Ask the host once in a second.

    @param second: Of the reactor's time.
    """
    try:
        return isLocalAddress(address)
    except ValueError:
        return False


def explain(transport: Any) -> Why:
    """
    Say why a connection or a port goes the way it goes.

    @param transport: A transport, a port or a connector; TLS and other wrappers are looked through.
    """
    for _ in range(16):
        why = getattr(transport, "why", None)
        if isinstance(why, Why):
            return why
        port = getattr(transport, "server", None)
        if isinstance(port, SwitchedPort):
            return Why(port.why.rule, port.why.verdict, TCP)
        inner = getattr(transport, "transport", None)
        if inner is None:
            break
        transport = inner
    return Why(EXPLICIT, TCP, TCP)


__all__ = ["Switch", "explain"]
