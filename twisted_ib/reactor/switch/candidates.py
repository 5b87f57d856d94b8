"""
The ways to a peer over SDP: looked for without opening a device.

To a port of this host a way must end where TCP's does: at the process whose TCP socket would get the
connection.  Who offers SDP says in the run directory which socket that is
(L{twisted_ib.hca.device.tcpcounterparts}); the kernel says which one TCP would reach
(L{twisted_ib.reactor.switch.sockdiag}).
"""

from __future__ import annotations

from functools import lru_cache

import attrs

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.device.registry import fabricOf
from twisted_ib.hca.device.tcpcounterparts import Counterpart, TCPCounterparts
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.internet.addresses import reachable, scopeOf, withPort
from twisted_ib.reactor.switch import sockdiag
from twisted_ib.reactor.switch.reason import Fallback

#: Listeners whose SDP has failed that one reactor remembers; the oldest are forgotten.
OFFLOADS_REMEMBERED = 1024

#: The service id of SDP's port 0 (L{twisted_ib.sdp.handshake.serviceID}).
_SDP = 0x10000
#: Why SDP was not asked for, where nobody would expect it: no error text speaks of it.
UNASKED = frozenset(("mapped", "remote", "no_port"))
_NO_PORT = Fallback("no_port", "there is no port 0")


@attrs.frozen
class Candidate:
    """
    A way to try.

    @ivar device: The HCA's name.
    @ivar counterpart: Whom to reach; L{None} for whoever serves the port.
    """

    device: str
    counterpart: Counterpart | None


class Failures:
    """
    Whom SDP did not reach not long ago.
    """

    def __init__(self) -> None:
        self._when: dict[tuple[str, int, int, int], float] = {}

    def add(self, host: str, port: int, counterpart: Counterpart, now: float) -> None:
        """
        SDP has failed.
        """
        when, key = self._when, (reachable(host), port, counterpart.guid, counterpart.inode)
        when.pop(key, None)
        if len(when) >= OFFLOADS_REMEMBERED:
            del when[next(iter(when))]
        when[key] = now

    def holds(self, host: str, port: int, counterpart: Counterpart, now: float, seconds: float) -> bool:
        """
        @param seconds: How long a failure counts.
        @return: Whether SDP has failed since.
        """
        key = reachable(host), port, counterpart.guid, counterpart.inode
        since = self._when.get(key)
        if since is None:
            return False
        if 0 <= now - since < seconds:
            return True
        del self._when[key]
        return False


class Candidates:
    """
    Looks for ways.

    @ivar failures: Those that are not to be tried.
    """

    def __init__(self) -> None:
        self.failures = Failures()
        self._beside = TCPCounterparts()

    def here(
        self, devices: tuple[str, ...], host: str, port: int, now: float, retry: float
    ) -> list[Candidate] | Fallback:
        """
        Find the ways to a port that TCP could reach as well.

        @param devices: The devices that may carry, in order.
        @param host: The peer's address.
        @param now: The reactor's time.
        @param retry: How long who has failed is not tried, seconds.
        @return: The ways, or why there is none.
        """
        if not port:
            return _NO_PORT
        target = reachable(host)
        if ":" in host and ":" not in target:
            return Fallback("mapped", f"{host} is an IPv4 address in IPv6")
        if not _isLocal(target, int(now)):
            return Fallback("remote", f"{host} is not an address of this host")
        try:
            found = self._offered(devices, target, port)
        except (HCAError, OSError) as e:
            return Fallback("run_directory", str(e))
        where = withPort(host, port)
        if not found:
            return Fallback("no_listener", f"nobody offers SDP on {where}")
        try:
            best = sockdiag.reached(sockdiag.listeners(port), target.partition("%")[0], scopeOf(target))
        except sockdiag.Unreadable as e:
            return Fallback("unknown_listener", f"who listens on TCP {where} is not known: {e}")
        owners = {each.inode: each.uid for each in best}
        found = {each: device for each, device in found.items() if self._isTheSame(each, owners)}
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
        Find the ways where TCP does not matter.

        @param devices: The devices that may carry, in order.
        @return: One way for each, to whoever serves the port there.
        """
        if not port:
            return _NO_PORT
        found = [Candidate(device, None) for device in devices]
        return found or Fallback("no_device", "no device leads there")

    def _offered(self, devices: tuple[str, ...], host: str, port: int) -> dict[Counterpart, str]:
        """
        @return: Who offers SDP, each by the first device that leads there.
        """
        found: dict[Counterpart, str] = {}
        for device in devices:
            for each in self._counterparts(device, host, port):
                found.setdefault(each, device)
        return found

    def _counterparts(self, device: str, host: str, port: int) -> list[Counterpart]:
        fabric = fabricOf(device)
        if fabric == "shm":
            return self._beside.inProcesses(_SDP | port, host)
        return self._beside.inThread(_SDP | port, host) if fabric == "loopback" else []

    def _isTheSame(self, counterpart: Counterpart, owners: dict[int, int]) -> bool:
        """
        Whether who offers SDP is who has the TCP socket; that another user says so is not enough.

        @param owners: By inode, the users of the sockets that TCP would reach.
        """
        uid = owners.get(counterpart.inode)
        return uid is not None and (self._beside.isOurs(counterpart) or uid == counterpart.uid)

    def stands(self, device: str, host: str, port: int, counterpart: Counterpart) -> bool:
        """
        @return: Whether somebody offers SDP as before.
        """
        try:
            return counterpart in self._counterparts(device, reachable(host), port)
        except (HCAError, OSError):
            return False


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


__all__ = ["UNASKED", "Candidate", "Candidates", "Failures"]
