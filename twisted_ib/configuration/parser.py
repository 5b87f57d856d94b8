"""
The parser of C{libsdp.conf}: which connections use SDP, which use TCP.

A file has one statement per line; C{#} begins a comment::

    log [destination stderr|syslog|file NAME] [min-level NUMBER]
    use sdp|tcp|both listen|server|connect|client PROGRAM ADDRESS[/LENGTH]:PORTS
    device NAME FABRIC [ADDRESS|ADAPTER] [OPTION=yes|no]...
    route NETWORK DEVICE...
    timeout sdp|retry|short SECONDS

The first two are libsdp's, whose files are valid here; the others are our own.  PROGRAM is a shell pattern,
ADDRESS and PORTS may be C{*}, PORTS may be a range.  The result is values; L{twisted_ib.switch.rules.policy}
applies them.

Unlike libsdp the parser accepts a last line without a newline, lines that end in CR and LF, and brackets
around an IPv6 address.  As there, the last C{:} divides address and ports.

Source: libsdp C{config_scanner.l}, C{config_parser.y}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType

from attrs import define, field

from twisted_ib import limits, settings
from twisted_ib.configuration import syntax
from twisted_ib.configuration.lexer import Line, SyntaxMismatch, Token
from twisted_ib.configuration.patterns import Pattern
from twisted_ib.configuration.words import ROLE_WORDS, VERDICTS
from twisted_ib.errors import RulesError

#: Statements of one file: each listen and connect may compare all of them.
POLICY_STATEMENTS = 4096
#: Devices that one file adds.
POLICY_DEVICES = 64

_NO_OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType({})
# At most nine digits, so that 32 bits hold the number.  No leading zeros, as in libsdp's INT.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}").fullmatch
_SECONDS = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,9})?").fullmatch
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}").fullmatch


def _network(text: str, word: Token) -> syntax.AddressRange | None:
    if text == "*":
        return None
    # RFC 3986 section 3.2.2: brackets around an IPv6 address, here with or without the prefix length inside.
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    address, slash, length = text.partition("/")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    parsed = syntax.parseAddress(address)
    if parsed is None:
        raise word.wrong("an IPv4 or IPv6 address or *")
    version, value = parsed
    width = 32 if version == 4 else 128
    if not slash:
        return syntax.AddressRange(version, value, width)
    if not _NUMBER(length) or int(length) > width:
        raise word.wrong(f"a prefix length from 0 to {width} after the /")
    return syntax.AddressRange(version, value, int(length))


def _ports(text: str, word: Token) -> tuple[int, int]:
    if text == "*":
        return 0, 65535
    # RFC 9293 section 3.1: ports have 16 bits.
    first, dash, last = text.partition("-")
    for port in (first, last) if dash else (first,):
        if not _NUMBER(port) or int(port) > 65535:
            raise word.wrong("a port from 0 to 65535, a range of ports or * after the last :")
    return int(first), int(last if dash else first)


@define
class _Parser:
    """
    The state of a parse.

    @ivar known: The devices, and their fabrics.
    @ivar named: The devices that routes name, with line numbers: checked at the end, as a C{device} statement
        may follow.
    """

    name: str
    known: dict[str, str]
    fabrics: Mapping[str, bool]
    options: Mapping[str, tuple[str, ...]]
    adapters: Container[str]
    rules: list[syntax.Rule] = field(factory=list)
    devices: list[syntax.DeviceStatement] = field(factory=list)
    routes: list[syntax.Route] = field(factory=list)
    logs: list[syntax.Log] = field(factory=list)
    timeouts: syntax.Timeouts = field(factory=syntax.Timeouts)
    warnings: list[str] = field(factory=list)
    errors: list[tuple[int, int, str]] = field(factory=list)
    named: list[tuple[int, Token]] = field(factory=list)

    def line(self, number: int, text: str) -> None:
        line = Line(text, f"{self.name}:{number}")
        word = line.next()
        if word is None:
            return
        read = _STATEMENTS.get(word.text)
        if read is None:
            raise word.wrong("use, log, device, route or timeout")
        # Counted here and not by lines: comments are free.
        done = len(self.rules) + len(self.logs) + len(self.devices) + len(self.routes)
        if done >= POLICY_STATEMENTS:
            raise word.wrong(f"at most {POLICY_STATEMENTS} statements")
        read(self, line, number)

    def use(self, line: Line, number: int) -> None:
        verdict = line.choose(*VERDICTS).text
        role = ROLE_WORDS[line.choose(*ROLE_WORDS).text]
        program = line.take("a program's name or pattern", name=True).text
        expected = "an address and ports, as *:80"
        word = line.takeGlued(expected)
        # The last colon: an IPv6 address without brackets has colons of its own.
        address, colon, ports = word.text.rpartition(":")
        if not colon:
            raise word.wrong(expected)
        network = _network(address, word)
        first, last = _ports(ports, word)
        line.end()
        if network is not None:
            network = self.checked(network, line.where)
        # A warning only, as libsdp accepts such a rule; it never matches.
        if first > last:
            self.warn(line.where, f"ports {first}-{last} never match: the first is greater than the last")
        self.rules.append(
            syntax.Rule(verdict, role, Pattern.parse(program), network, first, last, line.where)
        )

    def warn(self, where: str, text: str) -> None:
        self.warnings.append(f"{where}: {text}")

    def checked(self, network: syntax.AddressRange, where: str) -> syntax.AddressRange:
        # libsdp match.c: 0.0.0.0 with any length is every address.
        if network.version == 4 and network.value == 0:
            return network
        if network.length == 0:
            # libsdp takes a prefix length of 0 for an absent one, which is 32 or 128.
            whole = network._replace(length=network.width)
            self.warn(where, f"a prefix length of 0 counts as none: {whole.text()} matches one address alone")
            return whole
        # Not corrected: a file must have the same effect with libsdp and with us.
        masked = network.value & network.mask
        if network.version == 4 and masked != network.value:
            self.warn(
                where,
                f"{network.text()} never matches, as bits after the first {network.length} are set; "
                f"the network is {network.text(masked)}",
            )
        return network

    def log(self, line: Line, number: int) -> None:
        destination = file = level = None
        while (word := line.next()) is not None:
            if word.text == "destination":
                destination = line.choose("stderr", "syslog", "file").text
                file = line.take("a file's name", name=True).text if destination == "file" else None
            elif word.text == "min-level":
                amount = line.take("a level, 1 to 9")
                if not _NUMBER(amount.text):
                    raise amount.wrong("a level, 1 to 9")
                level = int(amount.text)
            else:
                raise word.wrong("destination or min-level")
        self.logs.append(syntax.Log(destination, file, level, line.where))

    def device(self, line: Line, number: int) -> None:
        name = line.take("a device's name")
        if not _NAME(name.text):
            raise name.wrong("a device's name, of letters, digits, _, . and -")
        fabric = line.choose(*self.fabrics)
        address = line.next()
        isAdapter = fabric.text in self.adapters
        if address is None and self.fabrics[fabric.text]:
            raise line.missing("an adapter's name" if isAdapter else "an IPv4 or IPv6 address of this host")
        if isAdapter and address is not None and not _NAME(address.text):
            raise address.wrong("an adapter's name, as rxe0")
        if not isAdapter and address is not None and syntax.parseAddress(address.text) is None:
            raise address.wrong("an IPv4 or IPv6 address")
        options = self.optionsOf(line, self.options.get(fabric.text, ()))
        earlier = next((device for device in self.devices if device.name == name.text), None)
        if earlier is not None:
            raise name.wrong(f"another name than that of {earlier.where}")
        # lo0 and shm0 exist already; a statement may repeat one, but not change its fabric.
        if self.known.get(name.text, fabric.text) != fabric.text:
            raise fabric.wrong(f"{self.known[name.text]}, the fabric of {name.text}")
        if len(self.devices) >= POLICY_DEVICES:
            raise name.wrong(f"at most {POLICY_DEVICES} devices")
        self.known[name.text] = fabric.text
        text = None if address is None else address.text
        self.devices.append(syntax.DeviceStatement(name.text, fabric.text, text, line.where, options))

    def optionsOf(self, line: Line, names: tuple[str, ...]) -> tuple[tuple[str, bool], ...]:
        # The rest of a device statement, of a fabric with options of these names.
        found: dict[str, bool] = {}
        while (word := line.next()) is not None:
            option = syntax.parseOption(word.text)
            if option is None or option[0] not in names:
                choices = ", ".join(f"{name}=yes|no" for name in names)
                raise word.wrong(choices or "the end of the line")
            found.update([option])
        return tuple(found.items())

    def route(self, line: Line, number: int) -> None:
        word = line.take("a network")
        network = _network(word.text, word)
        # Routes are ours, so host bits are an error here, while rules only warn.
        if network is not None and network.value & network.mask != network.value:
            raise word.wrong(f"a network such as {network.text(network.value & network.mask)}")
        devices = [line.take("a device's name")]
        while (more := line.next()) is not None:
            devices.append(more)
        if len(devices) > POLICY_DEVICES:
            raise devices[POLICY_DEVICES].wrong(f"at most {POLICY_DEVICES} devices")
        self.named += ((number, device) for device in devices)
        names = tuple(dict.fromkeys(device.text for device in devices))
        self.routes.append(syntax.Route(network, names, line.where))

    def timeout(self, line: Line, number: int) -> None:
        kind = line.choose("sdp", "retry", "short").text
        least = "more than 0" if kind == "sdp" else "0"
        expected = f"a number of seconds, from {least} to {settings.TIMEOUT_MOST_SECONDS:g}"
        word = line.take(expected)
        if not _SECONDS(word.text):
            raise word.wrong(expected)
        seconds = float(word.text)
        if seconds > settings.TIMEOUT_MOST_SECONDS or (kind == "sdp" and seconds == 0):
            raise word.wrong(expected)
        line.end()
        self.timeouts = self.timeouts._replace(**{kind: seconds})


#: The first word of a statement -> the method that parses the rest.
_STATEMENTS: dict[str, Callable[[_Parser, Line, int], None]] = {
    "device": _Parser.device,
    "log": _Parser.log,
    "route": _Parser.route,
    "timeout": _Parser.timeout,
    "use": _Parser.use,
}


def parse(
    text: str,
    name: str,
    devices: Mapping[str, str],
    fabrics: Mapping[str, bool],
    options: Mapping[str, tuple[str, ...]] = _NO_OPTIONS,
    adapters: Container[str] = (),
) -> syntax.Contents:
    """
    Parse a file.

    @param name: Its name, for errors.
    @param devices: The devices that exist without it, and the fabric of each.
    @param fabrics: The fabrics that a device may have, and whether it then needs an address.
    @param options: The options of devices, by fabric.
    @param adapters: The fabrics whose devices have the name of an adapter in place of an address.
    @raise RulesError: a line is wrong; then the whole file is ignored.
    """
    reading = _Parser(name, dict(devices), fabrics, options, adapters)
    # The byte order mark that some editors write is not a part of the first word.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        try:
            reading.line(number, line.removesuffix("\r"))
        except SyntaxMismatch as wrong:
            reading.errors.append((number, wrong.column, str(wrong)))
            if len(reading.errors) >= limits.POLICY_ERRORS:
                break
    for number, word in reading.named:
        if word.text not in reading.known:
            missing = word.wrong(f"the name of a device, one of {', '.join(sorted(reading.known))}")
            reading.errors.append((number, word.column, str(missing)))
    # Unlike libsdp, which keeps the rules before the error: half a file may be the opposite of what was
    # meant.
    if reading.errors:
        errors = sorted(reading.errors)[: limits.POLICY_ERRORS]
        raise RulesError(*(f"{name}:{number}:{column}: {error}" for number, column, error in errors))
    return syntax.Contents(
        name,
        tuple(reading.rules),
        tuple(reading.devices),
        tuple(reading.routes),
        tuple(reading.logs),
        reading.timeouts,
        tuple(reading.warnings),
    )
