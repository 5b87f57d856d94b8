"""
The walks of docs/design.md: what runs for a write, in this order.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import CodeType
from typing import Any

from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import PACKAGE, profiled
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.sdp import connectSDP, listenSDP

PAGE = Path(__file__).resolve().parents[2] / "docs/design.md"
#: A line of a walk: the module, and the function.
STEP = re.compile(r"^  ([\w/]+\.py) +(?:(\w+)\.)?(\w+)(?: |$)", re.MULTILINE)
DATA = bytes(64)


def walks() -> list[list[tuple[str, str, str]]]:
    """
    @return: Those of the page: modules, classes and functions.
    """
    section = PAGE.read_text().partition("## One write, down and up")[2].partition("\n## ")[0]
    return [STEP.findall(block) for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL)]


class Echo(Protocol):
    """
    Sends back what it gets.
    """

    transport: ITransport

    def dataReceived(self, data: bytes) -> None:
        """
        Back.
        """
        self.transport.write(data)


class Asking(Protocol):
    """
    Counts answers.
    """

    transport: ITransport
    got = 0

    def dataReceived(self, data: bytes) -> None:
        self.got += len(data)


class WalkTests(SynchronousTestCase):
    """
    A message and its echo, between the reactors of a sender and a receiver.
    """

    def ran(self, device: str, here: str, there: str) -> list[tuple[str, str]]:
        """
        @return: The functions of the package that were called, in order, with their modules.
        """
        ownRunDirectory(self)
        reactors = IBReactor(), IBReactor()
        for each in reactors:
            self.addCleanup(lambda reactor=each: [channel.close() for channel in list(channelsOf(reactor))])
        near, far = reactors
        factory = Factory.forProtocol(Echo)
        factory.noisy = False
        address = listenSDP(far, 0, factory, interface=there, device=device).getHost()
        client = Asking()
        caller: Any = ClientFactory()
        caller.noisy = False
        caller.buildProtocol = lambda _: client
        bound = (here, 0) if here else None
        connectSDP(near, address.host, address.port, caller, bindAddress=bound, device=device)

        def turn() -> bool:
            for each in reactors:
                each.iterate(0)
            return client.transport is not None

        waitUntil(turn)
        calls: list[tuple[str, str]] = []

        def ask() -> None:
            expected = client.got + len(DATA)
            client.transport.write(DATA)
            waitUntil(lambda: turn() and client.got == expected)

        def see(code: CodeType) -> None:
            if code.co_filename.startswith(PACKAGE):
                calls.append((code.co_filename.removeprefix(PACKAGE), code.co_name))

        ask()
        profiled(ask, see)
        return calls

    def follow(self, walk: list[tuple[str, str, str]], calls: list[tuple[str, str]]) -> None:
        """
        Each step of a walk was taken, after the one before it.
        """
        self.assertGreater(len(walk), 10)
        left = iter(calls)
        for module, kind, function in walk:
            self.assertTrue(any(call == (module, function) for call in left), f"{module} {kind}.{function}")
            text = Path(PACKAGE, module).read_text()
            self.assertRegex(text, rf"(?m)^class {kind}\b" if kind else rf"def {function}\b")

    def test_shared(self) -> None:
        """
        Within a host.
        """
        self.follow(walks()[0], self.ran("shm0", "", "127.0.0.1"))

    def test_packets(self) -> None:
        """
        Between hosts.
        """
        self.follow(walks()[1], self.ran("roce0", ownAddress(1), ownAddress(2)))
