"""
C{ib-policy}: whether a port or connection uses SDP or TCP by the rules, and whether a rule file is valid.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from twisted_ib.configuration.file import readRules
from twisted_ib.configuration.syntax import parseAddress
from twisted_ib.configuration.words import LISTEN, SDP, TCP
from twisted_ib.errors import HCAError, RulesError
from twisted_ib.hca.device.registry import (
    addDevice,
    builtInDevices,
    fabricOf,
    parseRules,
    removeDevice,
    traitsOf,
)
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.internet.addressing.addresses import withPort
from twisted_ib.settings import CONFIG
from twisted_ib.switch.candidates import Candidates
from twisted_ib.switch.reason import Fallback
from twisted_ib.switch.rules.configuration import Configuration
from twisted_ib.switch.rules.policy import Policy
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, printable, write

PROGRAM = "ib-policy"

#: The local address that server rules are matched against when a program binds the wildcard.
ANY_ADDRESS = "0.0.0.0"


def resolve(host: str) -> str:
    """
    Resolve a host.

    @param host: an address, a name, or C{*} or nothing for the IPv4 wildcard.
    @return: an address; of several the first, IPv4 before IPv6.
    @raise ProgramError: the name has none.
    """
    if host in ("", "*"):
        return ANY_ADDRESS
    # RFC 3986 section 3.2.2: brackets keep the colons of an IPv6 address apart from that of the port.
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if parseAddress(host.partition("%")[0]) is not None:
        return host
    reason = "no address"
    # Not the order of RFC 6724, but that of the reactor's connectTCP, whose decision is to be predicted.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            reason = error.strerror or reason
        except UnicodeError:
            reason = "is not a name"
    raise ProgramError(f"{host}: {reason}")


def parseTarget(text: str) -> tuple[str, int]:
    """
    Parse C{HOST:PORT}.

    @return: the address and the port.
    @raise ProgramError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ProgramError(f"{text}: expected HOST:PORT, with a port from 0 to 65535")
    return resolve(host), int(port)


def policyFor(config: str | None) -> Policy:
    """
    Read the rules as a program would.

    @param config: the rule file; L{None} for the one that a program would find.
    @raise OSError: it cannot be read.
    @raise RulesError: it is invalid.
    """
    environ = dict(os.environ)
    if config is not None:
        # Through the environment, so that defaults and search order are those of the reactor.
        environ[CONFIG] = config
    return Configuration(environ).read()


@contextmanager
def devicesOf(policy: Policy) -> Iterator[None]:
    """
    Have the devices of the rules, as a program that uses them has.
    """
    added = []
    try:
        for device in policy.devices:
            if fabricOf(device.name) is None:
                addDevice(device.name, device.fabric, device.address, **dict(device.options))
                added.append(device.name)
        yield
    finally:
        for name in added:
            removeDevice(name)


def outcome(policy: Policy, role: str, verdict: str, address: str, port: int) -> str:
    """
    @param role: C{listen} or C{connect}.
    @return: what would happen now, in a program with these rules.
    """
    if verdict == TCP:
        return "TCP: so says the rule"
    local = isLocalAddress(address)
    where = withPort(address, port)
    with devicesOf(policy):
        devices = tuple(name for name in policy.devicesFor(address) if fabricOf(name) is not None)
        far = [name for name in devices if traitsOf(name).hasAddress]
        if role == LISTEN:
            if not local:
                return f"an error: {address} is not an address of this host"
            return f"{'SDP' if verdict == SDP else 'TCP, and SDP'} on {', '.join(devices)}"
        if verdict == SDP:
            chosen = devices if local else far
            if not chosen:
                return f"an error: {address} is not this host and no route leads there"
            return f"SDP on {chosen[0]}, or an error if nobody answers there"
        # Only "use sdp" leaves this host: TCP's server there cannot be compared with SDP's.
        if not local:
            route = f"the route to {far[0]} counts for 'use sdp' alone" if far else "no route leads there"
            return f"TCP: {address} is not this host and {route}"
        found = Candidates().here(devices, address, port, 0.0, 0.0)
        if isinstance(found, Fallback):
            return f"TCP: {found}"
        return f"SDP on {found[0].device}, where {where} is served; TCP if that fails"


def check(options: Namespace) -> int:
    """
    Print how one port or connection is carried; return the exit status.
    """
    address, port = parseTarget(options.target)
    policy = policyFor(options.config)
    decision = policy.decide(options.role, options.program, address, port)
    happens = outcome(policy, options.role, decision.verdict, address, port)
    if options.json:
        answer = {
            "verdict": decision.verdict,
            "rule": decision.where,
            "reason": decision.reason or None,
            "file": policy.source,
            "role": options.role,
            "program": options.program,
            "address": address,
            "port": port,
            "devices": list(policy.devicesFor(address)),
            "outcome": happens,
        }
        write(json.dumps(answer, indent=2))
    else:
        # The rule's place begins with a file name, which may contain anything but NUL and a slash.
        write(f"{decision.verdict} {printable(decision.where)}\n{printable(happens)}")
    return 0


def test(options: Namespace) -> int:
    """
    Print the errors and warnings of a rule file; return the exit status, 1 if there are errors.
    """
    text = readRules(options.file)
    try:
        # Warnings do not fail the test: libsdp accepts such lines, for instance host bits below the prefix,
        # which never match (libsdp match.c).
        warnings = parseRules(text, options.file, builtInDevices(os.environ)).warnings
    except RulesError as error:
        # FILE:LINE:COLUMN, as compilers print it, so that editors find the place.
        for line in error.errors:
            write(printable(line))
        return 1
    for line in warnings:
        write(printable(line))
    return 0


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(prog=PROGRAM, description="What the ib reactor's rules say of connections.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    checking = commands.add_parser(
        "check",
        help="which way one listening port or connection goes",
        description="Print sdp, tcp or both for a port or connection, and FILE:LINE of the rule or default; "
        "then what would happen now.",
    )
    checking.add_argument("role", choices=("listen", "connect"), metavar="listen|connect")
    checking.add_argument(
        "target", metavar="HOST:PORT", help="the address that is bound (* is any) or connected to"
    )
    checking.add_argument(
        "--program",
        metavar="P",
        default="twistd",
        help="the base name of the program (default: %(default)s)",
    )
    checking.add_argument(
        "--config",
        metavar="FILE",
        help="the rules (default: those that a program here would have)",
    )
    checking.add_argument("--json", action="store_true", help="one JSON object, with reason and devices")
    checking.set_defaults(run=check)
    testing = commands.add_parser(
        "test",
        help="whether a file of rules is right",
        description="Print FILE:LINE: and what is odd, FILE:LINE:COLUMN: and what was expected.",
    )
    testing.add_argument("file", metavar="FILE", help="the rules")
    testing.set_defaults(run=test)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-policy}.
    """
    options = commandLine().parse_args(arguments)
    run: Callable[[Namespace], int] = options.run
    try:
        return run(options)
    except RulesError as error:
        for line in error.errors:
            complain(PROGRAM, ProgramError(printable(line)))
        return 1
    except (HCAError, OSError, ProgramError) as error:
        complain(PROGRAM, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
