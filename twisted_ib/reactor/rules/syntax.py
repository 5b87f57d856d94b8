"""
The statements of a file of rules, as values.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from attrs import frozen

from twisted_ib.reactor.rules.patterns import Pattern

SDP, TCP, BOTH = VERDICTS = ("sdp", "tcp", "both")
LISTEN, CONNECT = ROLES = ("listen", "connect")

_QUAD = re.compile(r"(?:(?:0|[1-9][0-9]{0,2})(?:\.(?!$)|$)){4}").fullmatch


def parseAddress(text: str) -> tuple[int, int] | None:
    """
    @param text: an IPv4 or IPv6 address, without a zone.

    @return: 4 or 6, and the address as a number; L{None} if it is none.
    """
    if _QUAD(text):
        number = 0
        for part in text.split("."):
            if int(part) > 255:
                return None
            number = number << 8 | int(part)
        return 4, number
    if ":" not in text or "%" in text:
        return None
    try:
        return 6, int(IPv6Address(text))
    except AddressValueError:
        return None


@frozen
class AddressRange:
    """
    Addresses with a common prefix.

    @ivar version: 4 or 6.
    @ivar value: the address as a number, host bits included.
    @ivar length: how many of its bits count.
    """

    version: int
    value: int
    length: int

    @property
    def width(self) -> int:
        """
        The bits of an address.
        """
        return 32 if self.version == 4 else 128

    @property
    def mask(self) -> int:
        """
        A number with the bits that count.
        """
        return (1 << self.width) - (1 << self.width - self.length)

    def holds(self, address: tuple[int, int] | None) -> bool:
        """
        @param address: what L{parseAddress} gave.

        @return: whether it has this prefix.
        """
        return (
            address is not None and address[0] == self.version and not (self.value ^ address[1]) & self.mask
        )

    def text(self, value: int | None = None) -> str:
        """
        @param value: an address of this version, by default its own.

        @return: it and the length, as in a file.
        """
        number = self.value if value is None else value
        return f"{IPv4Address(number) if self.version == 4 else IPv6Address(number)}/{self.length}"


@frozen
class Rule:
    """
    A C{use} statement.

    @ivar verdict: one of L{VERDICTS}.
    @ivar role: one of L{ROLES}.
    @ivar program: which programs.
    @ivar network: which addresses; L{None} for C{*}.
    @ivar firstPort: the first port.
    @ivar lastPort: the last one.
    @ivar where: C{FILE:LINE}.
    """

    verdict: str
    role: str
    program: Pattern
    network: AddressRange | None
    firstPort: int
    lastPort: int
    where: str


@frozen
class DeviceStatement:
    """
    A C{device} statement.

    @ivar name: what it is called.
    @ivar fabric: its medium.
    @ivar address: the address that it has there, or L{None}.
    @ivar where: C{FILE:LINE}.
    """

    name: str
    fabric: str
    address: str | None
    where: str


@frozen
class Route:
    """
    A C{route} statement.

    @ivar network: the addresses; L{None} for C{*}.
    @ivar devices: the devices that lead there, the first to try first.
    @ivar where: C{FILE:LINE}.
    """

    network: AddressRange | None
    devices: tuple[str, ...]
    where: str


@frozen
class Log:
    """
    A C{log} statement; what it does not say is L{None}.

    @ivar destination: C{"stderr"}, C{"syslog"} or C{"file"}.
    @ivar file: the file's name.
    @ivar level: the least level that is logged.
    @ivar where: C{FILE:LINE}.
    """

    destination: str | None
    file: str | None
    level: int | None
    where: str


@frozen
class Timeouts:
    """
    What C{timeout} statements say, in seconds.

    @ivar sdp: how long an attempt over SDP may take before TCP has its turn; less if the
        program's own timeout is short.
    @ivar retry: how long SDP is not tried again where it failed; 0 is not at all.
    """

    sdp: float = 2.0
    retry: float = 60.0


@frozen
class Contents:
    """
    What a file says.

    @ivar name: the file's name.
    @ivar rules: its rules, in order.
    @ivar devices: the devices that it adds.
    @ivar routes: its routes, in order.
    @ivar logs: its C{log} statements, in order.
    @ivar timeouts: its times, the last of each kind.
    @ivar warnings: what is allowed and surely not meant: lines as C{FILE:LINE: ...}.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    devices: tuple[DeviceStatement, ...] = ()
    routes: tuple[Route, ...] = ()
    logs: tuple[Log, ...] = ()
    timeouts: Timeouts = Timeouts()
    warnings: tuple[str, ...] = ()
