"""
Base of tests of the examples within one reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.internet.protocol import Factory
from twisted.internet.test.reactormixins import ReactorBuilder

from tests.internet.test_stream_suite import IB_REACTORS, OTHER_REACTORS
from tests.support.waiting import becomes, runToEnd
from twisted_ib.internet.readers import channelsOf


class ExampleTestCase(ReactorBuilder):
    """
    Runs coroutines on the reactors C{ib} and C{epoll}, on C{shm0}.
    """

    requiredInterfaces = (IReactorFDSet, IReactorTime)
    _reactors = IB_REACTORS + OTHER_REACTORS[:1]

    def drive(self, steps: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """
        Run a coroutine; nothing may be left on the device at its end, but for the connections
        that it has not closed.
        """
        reactor: Any = self.buildReactor()
        runToEnd(self, reactor, lambda: steps(reactor))

    async def listen(self, reactor: Any, factory: Any, scheme: str = "ib") -> str:
        """
        @return: the client's endpoint string.
        """
        factory.noisy = False
        self.port: Any = await serverFromString(reactor, f"{scheme}:0:interface=127.0.0.1").listen(factory)
        self.endpoint = f"{scheme}:127.0.0.1:{self.port.getHost().port}"
        return self.endpoint

    async def connect(self, reactor: Any, endpoint: str, protocol: Any) -> Any:
        """
        @return: the client's protocol.
        """
        factory = Factory.forProtocol(protocol)
        factory.noisy = False
        return await clientFromString(reactor, endpoint).connect(factory)

    def inUse(self, reactor: Any) -> dict[str, int]:
        """
        @return: how many objects there are, of each kind of which there are any.
        """
        found: dict[str, int] = {}
        for channel in channelsOf(reactor):
            for kind, number in channel.device.inUse().items():
                if number:
                    found[kind] = found.get(kind, 0) + number
        return found

    async def assertEmpty(self, reactor: Any) -> None:
        """
        Stop listening; then nothing may be left.
        """
        await self.port.stopListening()
        await becomes(reactor, lambda: not self.inUse(reactor))
