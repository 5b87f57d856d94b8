"""
The search for SDP listeners of a peer, without opening a device.

For a port of this host SDP must reach the process that TCP reaches: the one with the TCP socket.  An SDP
listener's entry in the run directory names that socket's inode (L{twisted_ib.hca.device.tcpcounterparts});
the kernel reports which socket TCP would reach (L{twisted_ib.switch.sockdiag}).
"""

from __future__ import annotations

from functools import lru_cache

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.device.registry import FABRICS, fabricOf
from twisted_ib.hca.device.tcpcounterparts import Counterpart, TCPCounterparts
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.internet.addressing.addresses import reachable, scopeOf, withPort
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen
from twisted_ib.switch import sockdiag
from twisted_ib.switch.gainless import Gainless
from twisted_ib.switch.reason import Fallback, noListener, remote

#: SDP listeners to which a connect failed that one reactor remembers; beyond it the oldest is evicted.
OFFLOADS_REMEMBERED = 1024

#: The service id of SDP's port 0 (IBTA vol. 1 annex A4; L{twisted_ib.sdp.handshake.Handshake}).
_SDP = 0x10000
_NO_PORT = Fallback("no_port", "there is no port 0")


@frozen(repr=False)
class Candidate(Shown):
    """
    A way to connect over SDP.

    @ivar device: The HCA's name.
    @ivar counterpart: The server; L{None} for any that serves the port.
    """

    device: str
    counterpart: Counterpart | None


class Failures:
    """
    SDP listeners to which a connect failed lately.
    """

    def __init__(self) -> None:
        self._when: dict[tuple[str, int, int, int], float] = {}

    def add(self, host: str, port: int, counterpart: Counterpart, now: float) -> None:
        """
        Record a failure.
        """
        # With guid and inode: a restarted server is another, and is tried at once.
        when, key = self._when, (reachable(host), port, counterpart.guid, counterpart.inode)
        when.pop(key, None)
        if len(when) >= OFFLOADS_REMEMBERED:
            del when[next(iter(when))]
        when[key] = now

    def holds(self, host: str, port: int, counterpart: Counterpart, now: float, seconds: float) -> bool:
        """
        Return whether a connect failed within C{seconds}.
        """
        key = reachable(host), port, counterpart.guid, counterpart.inode
        since = self._when.get(key)
        if since is None:
            return False
        # A test's clock, or another reactor's, may be earlier than the failure.
        if 0 <= now - since < seconds:
            return True
        del self._when[key]
        return False


class Candidates:
    """
    The search.

    @ivar failures: Listeners that are not tried.
    @ivar gainless: Ports that are left to TCP under C{both}, as far as blocking sockets are concerned.
    """

    def __init__(self) -> None:
        self.failures = Failures()
        self.gainless = Gainless()
        self._beside = TCPCounterparts()

    def here(
        self, devices: tuple[str, ...], host: str, port: int, now: float, retry: float
    ) -> list[Candidate] | Fallback:
        """
        Return the candidates for a port that TCP could reach as well, or why there is none.

        @param devices: The devices that may carry, in order.
        @param now: The reactor's time, seconds.
        @param retry: How long a failure is remembered, seconds.
        """
        if not port:
            return _NO_PORT
        target = reachable(host)
        # RFC 4291 section 2.5.5.2: the application asked for IPv4 by an IPv6 socket and would see a mapped
        # peer address; the Hello has one form of each (IBTA vol. 1 annex A4).
        if ":" in host and ":" not in target:
            return Fallback("mapped", f"{host} is an IPv4 address in IPv6")
        # TCP's server on another host cannot be compared with SDP's: C{both} stays on this host.
        if not _isLocal(target, int(now)):
            return remote(host)
        try:
            found = self._offered(devices, target, port)
        except (HCAError, OSError) as e:
            return Fallback("run_directory", str(e))
        where = withPort(host, port)
        if not found:
            return noListener(where)
        try:
            listening = sockdiag.listeners(port)
        # Two processes may listen on one port of TCP (SO_REUSEPORT) or of SDP; without the kernel's answer
        # they cannot be matched.
        except sockdiag.Unreadable as e:
            return Fallback("unknown_listener", f"who listens on TCP {where} is not known: {e}")
        # Without these checks any process could offer SDP for another one's port and get its connections.
        address = target.partition("%")[0]
        if sockdiag.serving(listening, address):
            best = sockdiag.reached(listening, address, scopeOf(target))
            owners = {each.inode: each.uid for each in best}
            found = {each: device for each, device in found.items() if self._isTheSame(each, owners)}
        else:
            # A server publishes its entry before its socket listens, and TCP would reach it if that happens
            # just now.  No socket proves the entry: one of our own user is believed.
            found = {each: device for each, device in found.items() if self._beside.isOurs(each)}
        if not found:
            return Fallback("other_listener", f"who offers SDP on {where} is not who listens on TCP there")
        holds = self.failures.holds
        candidates = [
            Candidate(device, each)
            for each, device in found.items()
            if not holds(host, port, each, now, retry)
        ]
        return candidates or Fallback("remembered", f"SDP to {where} has failed not long ago")

    def anywhere(self, devices: tuple[str, ...], port: int) -> list[Candidate] | Fallback:
        """
        Return one candidate per device, for any server of the port; or why there is none.

        @param devices: The devices that may carry, in order.
        """
        if not port:
            return _NO_PORT
        found = [Candidate(device, None) for device in devices]
        return found or Fallback("no_device", "no device leads there")

    def _offered(self, devices: tuple[str, ...], host: str, port: int) -> dict[Counterpart, str]:
        found: dict[Counterpart, str] = {}
        for device in devices:
            for each in self._counterparts(device, host, port):
                # A server on several devices is one candidate, by the first device.
                found.setdefault(each, device)
        return found

    def _counterparts(self, device: str, host: str, port: int) -> list[Counterpart]:
        fabric = fabricOf(device)
        traits = None if fabric is None else FABRICS[fabric].traits
        if traits is None or traits.peers is not Peers.PROCESSES:
            return []
        search = self._beside.inProcesses if traits.inRunDirectory else self._beside.inThread
        return search(_SDP | port, host)

    def _isTheSame(self, counterpart: Counterpart, owners: dict[int, int]) -> bool:
        # The inode alone proves nothing, as each process writes its own entry: the user must be the socket's,
        # too.
        uid = owners.get(counterpart.inode)
        return uid is not None and (self._beside.isOurs(counterpart) or uid == counterpart.uid)

    def stands(self, device: str, host: str, port: int, counterpart: Counterpart) -> bool:
        """
        Return whether a server offers SDP as before.
        """
        try:
            return counterpart in self._counterparts(device, reachable(host), port)
        except (HCAError, OSError):
            return False


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def _isLocal(address: str, second: int) -> bool:
    # Cached for one second of the reactor's time: the list of the host's addresses is long to read for each
    # connect.
    try:
        return isLocalAddress(address)
    except ValueError:
        return False
