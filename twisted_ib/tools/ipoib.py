"""
C{ib-ipoib}: IP over InfiniBand for any program, by a TUN device that this process serves.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib.errors import HCAError, InterfaceClosedError, TunError
from twisted_ib.hca.host.libc import pidfdOpen
from twisted_ib.ipoib.namespaces import FAILED, Command, named
from twisted_ib.ipoib.protocol.wire import CONNECTED_MTU
from twisted_ib.ipoib.tun import NODE, Tun, isName
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    complain,
    runProgram,
    sentence,
    whole,
    write,
)

PROGRAM = "ib-ipoib"

#: RFC 791: the packets that every host takes.
LEAST_MTU = 576
#: How long the subnet is waited for at the beginning.
JOIN_SECONDS = 30.0
#: The signals that are passed on to a command.
PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_RUN = """\
The command has a user and a network namespace of its own, with lo and the interface; the device stays
outside.  It needs no right but user namespaces.  Its exit status is the command's, or 125 if there is no
network for it, 126 if the command cannot be run, 127 if there is none.  SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2
are passed on to the command."""


def _address(text: str) -> IPv4Interface | IPv6Interface:
    try:
        if "/" in text:
            return ip_interface(text)
    except ValueError:
        pass
    raise ArgumentTypeError(f"{text!r} is no ADDRESS/LENGTH, such as 10.9.0.1/24")


def _interfaceName(text: str) -> str:
    if not isName(text):
        raise ArgumentTypeError(f"{text!r} is no name of an interface")
    return text


class Session:
    """
    A TUN device and an IPoIB interface, forwarding from one to the other.
    """

    def __init__(self, reactor: Any, tun: Tun, options: Namespace) -> None:
        """
        @param tun: opened, but down.
        """
        self._reactor, self._tun, self._options = reactor, tun, options
        self._forwarder: Any = None
        self._interface: Any = None
        self._isUp = False
        self._reason = "the broadcast group is not joined"
        #: Fires with what ends the interface for ever.
        self.over: Deferred[int] = Deferred()

    async def begin(self) -> None:
        """
        Join the subnet, and bring the TUN up.

        @raise HCAError: that is not possible.
        """
        # Imported here: the child of run forks before there is a reactor, and help needs none.
        from twisted_ib.internet.channel import channelFor
        from twisted_ib.ipoib.forwarder import Forwarder
        from twisted_ib.ipoib.interface import IPoIBInterface

        options = self._options
        self._interface = interface = IPoIBInterface(
            *(channelFor(self._reactor, options.device), options.addresses),
            isConnected=options.mode != "datagram",
            mtu=options.mtu,
        )
        self._reactor.addSystemEventTrigger("before", "shutdown", self.end)
        forwarder = self._forwarder = Forwarder(
            *(self._reactor, self._tun, interface, self._failed), isAlone=options.command == "run"
        )
        await forwarder.up.addTimeout(JOIN_SECONDS, self._reactor, self._late)
        self._isUp = True

    def _late(self, result: Any, seconds: float) -> Any:
        raise ProgramError(f"no interface after {seconds:g} seconds: {self._reason}")

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, (InterfaceClosedError, TunError)):
            # The device may be closed while its interface goes because of the TUN.
            if not self.over.called:
                self.over.errback(error)
        elif self._isUp:
            complain(PROGRAM, error)
        else:
            # A subnet that is just beginning has no manager yet: the interface tries again.
            self._reason = sentence(error)

    def describe(self) -> str:
        """
        @return: the interface in one line.
        """
        addresses = " ".join(map(str, self._interface.addresses))
        return f"{self._tun.name}: {addresses} mtu {self._interface.mtu} on {self._options.device}"

    def end(self) -> Any:
        """
        Remove the TUN, leave the subnet.

        @return: fires when that is done.
        """
        self._forwarder.stop()
        return self._interface.close()


@implementer(IReadDescriptor)
class ChildEnd:
    """
    The end of a child process, by its pidfd (pidfd_open(2)).

    @ivar ended: fires with its wait status.
    """

    def __init__(self, reactor: Any, pid: int) -> None:
        self._reactor, self._pid = reactor, pid
        self._descriptor = pidfdOpen(pid)
        self.ended: Deferred[int] = Deferred()
        reactor.addReader(self)

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return PROGRAM

    def doRead(self) -> None:
        self._reactor.removeReader(self)
        os.close(self._descriptor)
        _, status = os.waitpid(self._pid, 0)
        self.ended.callback(status)

    def connectionLost(self, reason: Failure) -> None:
        pass  # The reactor ends: nobody waits any more.


def passSignals(pid: int) -> None:
    """
    Let a child decide what signals do: those that a terminal sends to both are ignored here, others passed
    on.
    """
    for each in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(each, signal.SIG_IGN)

    def passOn(number: int, frame: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for each in PASSED:
        signal.signal(each, passOn)


async def serveCommand(reactor: Any, command: Command, options: Namespace) -> int:
    """
    @return: the wait status of the command.
    """
    session = Session(reactor, command.tun, options)
    child = ChildEnd(reactor, command.pid)
    try:
        await session.begin()
    except (HCAError, ProgramError, OSError) as error:
        complain(PROGRAM, error)
        command.abandon()
        return await child.ended
    # The command goes on without a network: its exit status is what counts.
    session.over.addErrback(lambda failure: complain(PROGRAM, failure.value))
    passSignals(command.pid)
    command.go()
    return await child.ended


def endLike(status: int) -> int:
    """
    End as a child has ended: by the same signal, if it was one.

    @param status: the wait status.
    @return: the exit status.
    """
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    # The child has left its core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        # SIGKILL, of which there is no other form.
        pass
    os.kill(os.getpid(), number)
    return 128 + number


def run(options: Namespace) -> int:
    """
    @return: the exit status of C{ib-ipoib run}.
    """
    try:
        # Before there are a reactor and a device: a process with threads cannot have a user namespace of its
        # own, and a child would keep the device's descriptors.
        command = Command(options.arguments, options.name, options.tun)
    except TunError as error:
        complain(PROGRAM, error)
        return FAILED
    ended: list[int] = []

    async def serve(reactor: Any) -> int:
        ended.append(await serveCommand(reactor, command, options))
        return 0

    status = runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(serve(reactor)))
    return endLike(ended[0]) if ended else status or FAILED


def openTun(options: Namespace) -> Tun:
    """
    @return: the TUN of C{ib-ipoib up}.
    """
    if options.netns is None:
        return Tun.open(options.name, options.tun)
    with named(options.netns):
        return Tun.open(options.name, options.tun)


def up(options: Namespace) -> int:
    """
    @return: the exit status of C{ib-ipoib up}.
    """
    try:
        tun = openTun(options)
    except TunError as error:
        complain(PROGRAM, error)
        return 1

    async def serve(reactor: Any) -> int:
        session = Session(reactor, tun, options)
        await session.begin()
        write(session.describe())
        return await session.over

    return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(serve(reactor)))


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="IP over InfiniBand for any program: a network interface that this process serves.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    starting = commands.add_parser(
        "run",
        help="run a command in a network of its own, without privileges",
        usage=f"{PROGRAM} run [OPTIONS] DEVICE ADDRESS/LENGTH... -- COMMAND [ARGUMENT...]",
        epilog=_RUN,
    )
    staying = commands.add_parser("up", help="make an interface and serve it (CAP_NET_ADMIN)")
    staying.add_argument("--netns", metavar="NAME", help="in this network namespace of ip-netns(8)")
    for each in (starting, staying):
        each.add_argument("device", metavar="DEVICE", help="such as ib0, shm0 or roce0")
        each.add_argument(
            "addresses",
            metavar="ADDRESS/LENGTH",
            nargs="+",
            type=_address,
            help="IPv4 or IPv6; the link-local address is made from the port's GUID",
        )
        each.add_argument("--name", metavar="IFNAME", type=_interfaceName, help="by default the device's")
        each.add_argument(
            "--mode", choices=("datagram", "connected"), help="by default connected, with neighbours that can"
        )
        each.add_argument(
            "--mtu", type=whole(LEAST_MTU, CONNECTED_MTU), help="by default what the mode and the subnet have"
        )
        each.add_argument(
            "--tun", metavar="NODE", default=NODE, help="the TUN's device node (default: %(default)s)"
        )
    return parser


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @return: the parsed command line; C{arguments} of it is the command that C{run} runs.
    """
    ours, command = list(arguments), []
    if "--" in ours:
        split = ours.index("--")
        ours, command = ours[:split], ours[split + 1 :]
    parser = commandLine()
    options = parser.parse_args(ours)
    if (options.command == "run") != bool(command):
        parser.error("run needs -- COMMAND" if options.command == "run" else "up runs no command")
    options.arguments = command
    if options.name is None:
        options.name = options.device
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-ipoib}.
    """
    options = parseArguments(sys.argv[1:] if arguments is None else arguments)
    actions: dict[str, Callable[[Namespace], int]] = {"run": run, "up": up}
    return actions[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
