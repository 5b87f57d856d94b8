"""
The options that commands over RDS have in common: the device and the local address.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import DatagramProtocol

from twisted_ib.errors import HCAError
from twisted_ib.hca.device import registry
from twisted_ib.hca.host.addresses import sourceFor
from twisted_ib.rds import listenRDS
from twisted_ib.tools.ping.device import addressOf, chosen, configure
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, runProgram, sentence

#: In place of a device: RDS over TCP.
TCP = "tcp"


def addDeviceOptions(parser: ArgumentParser, letter: str) -> None:
    """
    Add the options for the device and the local address.

    @param letter: the latter's.
    """
    parser.add_argument(
        "--device",
        metavar="tcp|NAME",
        help="RDS over TCP, or the device, by default roce0 if it is configured, else shm0",
    )
    parser.add_argument(letter, dest="own", metavar="OWN", help="the own address")


def ownAddress(device: str, own: str | None, peer: str) -> str:
    """
    @param device: C{tcp}, or the name of a device.
    @param own: the user's choice, if any.
    @param peer: the peer's address.
    @return: the local address.
    @raise ProgramError: there is none.
    """
    try:
        place = None if device == TCP else registry.addressOf(device)
        # RDS has no wildcard address: Linux net/rds/bind.c refuses one.  So the route to the peer decides.
        return addressOf(own, True) or place or sourceFor(peer)
    except (HCAError, ValueError) as error:
        raise ProgramError(sentence(error)) from None


def openSocket(reactor: Any, port: int, protocol: DatagramProtocol, own: str, device: str) -> Any:
    """
    @param port: the port, or 0 for any.
    @param device: C{tcp}, or the name of a device.
    @return: an RDS socket, as L{listenRDS} makes it.
    @raise ProgramError: it cannot be bound.
    """
    try:
        return listenRDS(reactor, port, protocol, own, device=device)
    except CannotListenError as error:
        where = f"{own} port {port}" if port else own
        why = sentence(error.socketError)
        raise ProgramError(why if own in why else f"{where}: {why}") from None


def runOverRDS(
    program: str,
    options: Namespace,
    peer: str | None,
    run: Callable[[Any, Namespace, str], Coroutine[Any, Any, int]],
) -> int:
    """
    Run a command under a reactor.

    @param program: its name.
    @param peer: the peer, if there is one.
    @param run: called with the reactor, the options and the device; gives the exit status.
    @return: the exit status.
    """
    try:
        if options.device == TCP:
            configure()
            device = TCP
        else:
            device = chosen(options.device, options.own, peer)
        # RDS sockets are ports of a reactor, which the verbs programs do without.
        return runProgram(program, lambda reactor: Deferred.fromCoroutine(run(reactor, options, device)))
    except (ProgramError, OSError) as error:
        complain(program, error)
        return 1
