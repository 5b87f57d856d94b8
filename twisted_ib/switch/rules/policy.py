"""
The decision for a connection or port: SDP, TCP, or SDP with TCP as the fallback.

A L{Policy} has the rules of one file, or the default without one.  It never changes; its counters do.

Rules match as in libsdp: those of the role, in the file's order, the first that fits program, port and
address.  Compared is the local address of a listening socket as it is bound, or the remote address of a
connection.

Source: libsdp C{match.c}.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from attrs import frozen

from twisted_ib import limits
from twisted_ib.configuration.syntax import (
    AddressRange,
    Contents,
    DeviceStatement,
    Rule,
    Timeouts,
    parseAddress,
)
from twisted_ib.configuration.words import BOTH, ROLE_WORDS, SDP, TCP
from twisted_ib.layouts import Shown

#: Programs whose relevant rules a policy caches.
POLICY_PROGRAMS = 64

#: C{where} of a decision without a rule.
DEFAULT_WHERE = "default"
#: The device that exists without any statement.
SHARED_MEMORY = "shm0"


@frozen(repr=False)
class Decision(Shown):
    """
    The decision for a connection or a listening port.

    @ivar verdict: C{"sdp"}, C{"tcp"} or C{"both"}.
    @ivar where: C{FILE:LINE} of the rule, or C{"default"}.
    @ivar reason: Why no rule decided; empty if one did.
    """

    verdict: str
    where: str
    rule: Rule | None = None
    reason: str = ""


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def _numberOf(address: str) -> tuple[int, int] | None:
    # Return 4 or 6 and the address as a number; None if it is no address.
    # RFC 4007 section 11: the zone is not a part of the address that rules compare.
    return parseAddress(address.partition("%")[0]) if address else (4, 0)


def _everywhere(network: AddressRange | None) -> bool:
    # libsdp match.c: a rule for 0.0.0.0 matches every address of either family.
    return network is None or (network.version == 4 and network.value == 0)


def _within(network: AddressRange | None, asked: tuple[int, int] | None) -> bool:
    if network is None or _everywhere(network):
        return True
    # libsdp match.c masks the address that is asked for and not the rule's, so an IPv4 rule with host bits
    # never matches.  For IPv6 it compares prefixes, and host bits are ignored.  A file must mean here what it
    # means there.
    if network.version == 4:
        return asked is not None and asked[0] == 4 and network.value == asked[1] & network.mask
    return network.holds(asked)


def _always(rule: Rule) -> bool:
    return _everywhere(rule.network) and rule.firstPort == 0 and rule.lastPort == 65535


# libsdp also chooses at socket(), by the program alone (__sdp_match_by_program), before it knows an address.
# Twisted knows the address when it opens a socket, so that choice is not made here.
class Policy:
    """
    The rules in force.

    @ivar source: The file; L{None} without one.
    @ivar default: The decision where no rule matches.
    @ivar hits: How often each C{where} was decided.
    """

    def __init__(self, contents: Contents | None = None, default: str = BOTH, reason: str = "") -> None:
        """
        @param contents: The statements of a file; L{None} without one.
        @param default: The verdict where no rule matches.
        @param reason: The reason for that verdict, if not that no rule matches.
        """
        self.contents = contents
        self.source = None if contents is None else contents.name
        found = Contents("") if contents is None else contents
        self.devices: tuple[DeviceStatement, ...] = found.devices
        self.timeouts: Timeouts = found.timeouts
        self.hits: Counter[str] = Counter()
        reason = reason or ("no rules are configured" if contents is None else "no rule matches")
        self.default = Decision(default, DEFAULT_WHERE, None, reason)
        self._rules = tuple((rule, Decision(rule.verdict, rule.where, rule)) for rule in found.rules)
        # RFC 1812 section 5.2.4.3: the longest prefix first; among equals the file's order (the sort is
        # stable).
        self._routes = sorted(found.routes, key=lambda route: -route.network.length if route.network else 1)
        self._names = tuple(dict.fromkeys((SHARED_MEMORY, *(device.name for device in found.devices))))
        self._relevant: dict[tuple[str, str], tuple[tuple[Rule, Decision], ...]] = {}
        self._tcpOnly: dict[tuple[str, str], bool] = {}

    def _rulesFor(self, role: str, program: str) -> tuple[tuple[Rule, Decision], ...]:
        known = self._relevant.get((role, program))
        if known is not None:
            return known
        if role not in ROLE_WORDS:
            raise ValueError(f"role is {role!r}, not listen, server, connect or client")
        meant = ROLE_WORDS[role]
        relevant = []
        for rule, decision in self._rules:
            if rule.role != meant or not rule.program.matches(program):
                continue
            relevant.append((rule, decision))
            # No later rule can decide.
            if _always(rule):
                break
        # Bounded for callers that ask for many programs; a process has one.
        if len(self._relevant) >= POLICY_PROGRAMS:
            self._relevant.clear()
            self._tcpOnly.clear()
        self._relevant[role, program] = result = tuple(relevant)
        return result

    def decide(self, role: str, program: str, address: str, port: int) -> Decision:
        """
        Decide for one listening port or connection, and count it.

        @param role: C{"listen"} or C{"server"}, C{"connect"} or C{"client"}.
        @param program: The base name of the program.
        @param address: The IP address; empty for any IPv4 address.  Other text matches only rules for every
            address.
        @raise ValueError: C{role} is something else.
        """
        asked = _numberOf(address)
        chosen = self.default
        for rule, decision in self._rulesFor(role, program):
            if rule.firstPort <= port <= rule.lastPort and _within(rule.network, asked):
                chosen = decision
                break
        self.hits[chosen.where] += 1
        return chosen

    def certain(self, role: str, program: str) -> Decision | None:
        """
        Return the decision if it is the same for every address and port, else L{None}.

        @raise ValueError: C{role} is not one of L{decide}'s.
        """
        relevant = self._rulesFor(role, program)
        if not relevant:
            return self.default
        rule, decision = relevant[0]
        return decision if _always(rule) else None

    def tcpOnly(self, role: str, program: str) -> bool:
        """
        Return whether TCP is certain for every address and port.

        @raise ValueError: C{role} is not one of L{decide}'s.
        """
        # Asked at each listenTCP() and connectTCP(): the Intel design of the Offload Protocol Switch demands
        # that sockets of the operating system see next to no cost.
        known = self._tcpOnly.get((role, program))
        if known is None:
            relevant = self._rulesFor(role, program)
            verdicts = {rule.verdict for rule, _ in relevant}
            if not relevant or not _always(relevant[-1][0]):
                verdicts.add(self.default.verdict)
            known = self._tcpOnly[role, program] = verdicts == {TCP}
        return known

    def devicesFor(self, address: str) -> tuple[str, ...]:
        """
        Return the devices for an address, in the order to try: those of the route with the longest prefix,
        else the shared-memory device and the file's own.

        @param address: An IP address; empty for any IPv4 address.
        """
        asked = _numberOf(address)
        for route in self._routes:
            if route.network is None or route.network.holds(asked):
                return route.devices
        return self._names


#: The rules without a file.
DEFAULT = Policy()


def policyOf(contents: Contents, named: bool = False) -> Policy:
    """
    Return the policy of a file.

    @param named: Whether the user named the file.
    """
    if contents.rules:
        return Policy(contents)
    # libsdp (__sdp_config_empty): with no rules at all SDP is used for everything, without fallback.
    # Only a file that the user asked for may have such an effect.
    return Policy(contents, SDP if named else BOTH, f"{contents.name} holds no rule")
