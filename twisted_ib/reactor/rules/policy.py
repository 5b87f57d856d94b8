"""
What a connection shall use: SDP, TCP, or SDP with TCP behind it.

A L{Policy} is the rules of one file, or what holds without one.  It never changes; its counters do.

Rules are matched as libsdp does it: those of the role in the file's order, the first that fits the
program, the port and the address.  An IPv4 rule compares its address, host bits and all, with the masked
one that is asked for, so one with host bits fits nothing; C{0.0.0.0} fits everything; otherwise
families must be equal.  What is asked for is the local address of a listening socket as it is bound
and the remote one of a connection.  libsdp's earlier choice at C{socket()}, by the program alone, is
not made.

Source: libsdp C{match.c}.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from attrs import frozen

from twisted_ib import limits
from twisted_ib.reactor.rules.parser import ROLE_WORDS
from twisted_ib.reactor.rules.syntax import (
    BOTH,
    SDP,
    TCP,
    AddressRange,
    Contents,
    DeviceStatement,
    Rule,
    Timeouts,
    parseAddress,
)

#: Programs for which a policy remembers which of its rules are theirs.
POLICY_PROGRAMS = 64

#: C{where} of a decision that no rule made.
DEFAULT_WHERE = "default"
#: The device that is there without any statement.
SHARED_MEMORY = "shm0"


@frozen
class Decision:
    """
    What a connection or a listening port shall use.

    @ivar verdict: C{"sdp"}, C{"tcp"} or C{"both"}.
    @ivar where: C{FILE:LINE} of the rule, or C{"default"}.
    @ivar rule: the rule, or L{None}.
    @ivar reason: why no rule decided; empty if one did.
    """

    verdict: str
    where: str
    rule: Rule | None = None
    reason: str = ""


@lru_cache(maxsize=limits.ADDRESSES_REMEMBERED)
def _numberOf(address: str) -> tuple[int, int] | None:
    """
    @param address: an IP address, perhaps with a zone; empty for any IPv4 address.

    @return: 4 or 6, and the address as a number; L{None} if it is none.
    """
    return parseAddress(address.partition("%")[0]) if address else (4, 0)


def _everywhere(network: AddressRange | None) -> bool:
    """
    @param network: the addresses of a rule.

    @return: whether every address of either family is one.
    """
    return network is None or (network.version == 4 and network.value == 0)


def _within(network: AddressRange | None, asked: tuple[int, int] | None) -> bool:
    """
    @param network: the addresses of a rule.
    @param asked: an address, as L{_numberOf} gives it.

    @return: whether the address is one of them, in libsdp's way.
    """
    if network is None or _everywhere(network):
        return True
    if network.version == 4:
        return asked is not None and asked[0] == 4 and network.value == asked[1] & network.mask
    return network.holds(asked)


def _always(rule: Rule) -> bool:
    """
    @param rule: a rule.

    @return: whether it matches every address and port.
    """
    return _everywhere(rule.network) and rule.firstPort == 0 and rule.lastPort == 65535


class Policy:
    """
    The rules that hold.

    @ivar source: the file; L{None} without one.
    @ivar devices: the devices that the file adds.
    @ivar timeouts: its times.
    @ivar contents: what the file says.
    @ivar default: the decision where no rule matches.
    @ivar hits: how often L{decide} gave what: C{where} -> a number.
    """

    def __init__(self, contents: Contents | None = None, default: str = BOTH, reason: str = "") -> None:
        """
        @param contents: what the file says; L{None} if there is none.
        @param default: the verdict where no rule matches.
        @param reason: why it is that, if not because no rule matches.
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
        # The longest prefix first, and the file's order among equals.
        self._routes = sorted(found.routes, key=lambda route: -route.network.length if route.network else 1)
        self._names = tuple(dict.fromkeys((SHARED_MEMORY, *(device.name for device in found.devices))))
        self._relevant: dict[tuple[str, str], tuple[tuple[Rule, Decision], ...]] = {}
        self._tcpOnly: dict[tuple[str, str], bool] = {}

    def _rulesFor(self, role: str, program: str) -> tuple[tuple[Rule, Decision], ...]:
        """
        @param role: one of the four words for a role.
        @param program: a program's name.

        @return: the rules that may decide for it, and their decisions; none after one that always
            decides.

        @raise ValueError: C{role} is something else.
        """
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
            if _always(rule):
                break
        if len(self._relevant) >= POLICY_PROGRAMS:
            self._relevant.clear()
            self._tcpOnly.clear()
        self._relevant[role, program] = result = tuple(relevant)
        return result

    def decide(self, role: str, program: str, address: str, port: int) -> Decision:
        """
        Decide for one listening port or connection, and count it.

        @param role: C{"listen"} or C{"server"}, C{"connect"} or C{"client"}.
        @param program: the base name of the program.
        @param address: the IP address that is bound or that is connected to; empty for any IPv4
            address.  What is none matches only rules for every address.
        @param port: the port likewise.

        @return: the decision.

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
        @param role: as for L{decide}.
        @param program: the base name of the program.

        @return: the decision if it is always the same one, whatever address and port, else L{None}.

        @raise ValueError: C{role} is something else.
        """
        relevant = self._rulesFor(role, program)
        if not relevant:
            return self.default
        rule, decision = relevant[0]
        return decision if _always(rule) else None

    def tcpOnly(self, role: str, program: str) -> bool:
        """
        @param role: as for L{decide}.
        @param program: the base name of the program.

        @return: whether TCP is certain, whatever address and port.

        @raise ValueError: C{role} is something else.
        """
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
        @param address: an IP address; empty for any IPv4 address.

        @return: the names of the devices that lead there, the first to try first: those of the route
            with the longest prefix, without one the shared-memory device and then the file's own.
        """
        asked = _numberOf(address)
        for route in self._routes:
            if route.network is None or route.network.holds(asked):
                return route.devices
        return self._names


#: What holds without a file.
DEFAULT = Policy()


def policyOf(contents: Contents, named: bool = False) -> Policy:
    """
    @param contents: what a file says.
    @param named: whether the user named this file; if it has no rule, SDP is for everything then, as
        in libsdp.

    @return: the policy.
    """
    if contents.rules:
        return Policy(contents)
    return Policy(contents, SDP if named else BOTH, f"{contents.name} holds no rule")


__all__ = ["DEFAULT", "Decision", "Policy", "policyOf"]
