"""
The statements of a file of rules, as values.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple

from twisted_ib import settings
from twisted_ib.configuration.patterns import Pattern


def parseAddress(text: str) -> tuple[int, int] | None:
    """
    Parse an IP address without a zone.

    @return: 4 or 6, and the address as a number; L{None} if it is no address.
    """
    # RFC 4007 section 6: zones are numbered per node, so a rule for one would mean nothing on another host.
    if "%" in text:
        return None
    try:
        if ":" not in text:
            # RFC 3986 section 3.2.2: no leading zeros.  inet_aton(3) reads 010 as octal (RFC 6943 section
            # 3.1.1), so a rule with one would match another address than its author meant.
            return 4, int(IPv4Address(text))
        # RFC 4291 section 2.2: all forms of one address are equal here, as only the number is compared.
        return 6, int(IPv6Address(text))
    except AddressValueError:
        return None


def parseOption(text: str) -> tuple[str, bool] | None:
    """
    Parse an option of a device: C{NAME=yes} or C{NAME=no}.

    @return: its name, and whether it is on; L{None} if it is none.
    """
    name, _, value = text.partition("=")
    return (name, value == "yes") if name and value in ("yes", "no") else None


class AddressRange(NamedTuple):
    """
    Addresses with a common prefix (RFC 4632 section 3.1, RFC 4291 section 2.3).

    @ivar version: 4 or 6.
    @ivar value: The address as a number, host bits included.
    @ivar length: The bits of the prefix.
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
        The prefix bits as a number.
        """
        return (1 << self.width) - (1 << self.width - self.length)

    def holds(self, address: tuple[int, int] | None) -> bool:
        """
        Return whether an address of L{parseAddress} has this prefix.
        """
        return (
            address is not None and address[0] == self.version and not (self.value ^ address[1]) & self.mask
        )

    def text(self, value: int | None = None) -> str:
        """
        Return the address, or C{value} in its place, with the length as in a file.
        """
        number = self.value if value is None else value
        return f"{IPv4Address(number) if self.version == 4 else IPv6Address(number)}/{self.length}"


class Rule(NamedTuple):
    """
    A C{use} statement.

    @ivar verdict: One of L{VERDICTS}.
    @ivar role: One of L{ROLES}.
    @ivar network: The addresses; L{None} for C{*}.
    @ivar where: C{FILE:LINE}.
    """

    verdict: str
    role: str
    program: Pattern
    network: AddressRange | None
    firstPort: int
    lastPort: int
    where: str


class DeviceStatement(NamedTuple):
    """
    A C{device} statement.

    @ivar address: The device's address in its fabric, or L{None}.
    @ivar where: C{FILE:LINE}.
    @ivar options: name and state of each that is given.
    """

    name: str
    fabric: str
    address: str | None
    where: str
    options: tuple[tuple[str, bool], ...] = ()


class Route(NamedTuple):
    """
    A C{route} statement.

    @ivar network: The addresses; L{None} for C{*}.
    @ivar devices: Device names, in the order to try.
    @ivar where: C{FILE:LINE}.
    """

    network: AddressRange | None
    devices: tuple[str, ...]
    where: str


#: libsdp's levels of a log: matches, warnings, errors.
MATCH, WARNING, ERROR = 4, 8, 9


class Log(NamedTuple):
    """
    A C{log} statement; what it leaves out is L{None}.

    @ivar destination: C{"stderr"}, C{"syslog"} or C{"file"}.
    @ivar level: The lowest level that is logged.
    @ivar where: C{FILE:LINE}.
    """

    destination: str | None
    file: str | None
    level: int | None
    where: str


class Timeouts(NamedTuple):
    """
    The values of C{timeout} statements, in seconds.

    @ivar sdp: Limit of an attempt over SDP before TCP is tried; less if the program's own timeout is short.
    @ivar retry: How long SDP is not tried again where it failed; 0 is not at all.
    @ivar short: The same where connections of blocking sockets gained nothing.
    """

    sdp: float = settings.TIMEOUT_SDP_SECONDS
    retry: float = settings.TIMEOUT_RETRY_SECONDS
    short: float = settings.TIMEOUT_SHORT_SECONDS


class Contents(NamedTuple):
    """
    The statements of a file.

    @ivar rules: In the file's order, as the first match decides.
    @ivar timeouts: The last statement of each kind.
    @ivar warnings: Lines C{FILE:LINE: ...} on statements that are allowed and surely not meant.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    devices: tuple[DeviceStatement, ...] = ()
    routes: tuple[Route, ...] = ()
    logs: tuple[Log, ...] = ()
    timeouts: Timeouts = Timeouts()
    warnings: tuple[str, ...] = ()
