"""
SDP is held to what Twisted holds TCP to: its own transport tests, on each
reactor and each fabric of one host.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.internet.test.connectionmixins import EndpointCreator

from tests.internet.stream_suite import StreamSubject, makeStreamTests
from tests.support.waiting import HANG_SECONDS
from twisted_ib.sdp.port import SDPClientEndpoint, SDPServerEndpoint, connectSDP, listenSDP

#: A port on which nobody listens: those that a test gets are ephemeral.
_NOBODY = 9

IB_REACTORS = ["twisted_ib.reactor.ibreactor.IBReactor"]
IB_ASYNCIO = "twisted_ib.reactor.asyncioreactor.IBAsyncioReactor"

OTHER_REACTORS = [
    "twisted.internet.epollreactor.EPollReactor",
    "twisted.internet.pollreactor.PollReactor",
    "twisted.internet.selectreactor.SelectReactor",
    "twisted.internet.test.reactormixins.AsyncioSelectorReactor",
]

#: To the package those that watch descriptors are alike; C{tests/soak} has the others, too.
SOME_REACTORS = [OTHER_REACTORS[0], OTHER_REACTORS[-1]]

SKIPS = {
    "test_closePeerOnEMFILE": "counts the descriptors that accept() uses; SDP uses none",
}


class SDPCreator(EndpointCreator):
    """
    Endpoints on one device, or on two.
    """

    def __init__(self, device: str, host: str, client: str = "") -> None:
        """
        @param device: Its name.
        @param host: An address that it has.
        @param client: The name of the client's device, where that is another.
        """
        self.device, self.host = device, host
        self.clientDevice = client or device

    def server(self, reactor: Any) -> SDPServerEndpoint:
        """
        Any free port.
        """
        return SDPServerEndpoint(reactor, 0, interface=self.host, device=self.device)

    def client(self, reactor: Any, serverAddress: Any) -> SDPClientEndpoint:
        """
        To that port.
        """
        return SDPClientEndpoint(
            reactor, self.host, serverAddress.port, timeout=HANG_SECONDS, device=self.clientDevice
        )


def subjectFor(device: str, host: str = "127.0.0.1", client: str = "") -> StreamSubject:
    """
    Describe SDP on one device, which has an address, or from another one to that.
    """
    return StreamSubject(
        name=f"SDP{client.capitalize()}{device.capitalize()}",
        endpoints=SDPCreator(device, host, client),
        listen=lambda reactor, factory: listenSDP(reactor, 0, factory, interface=host, device=device),
        connect=lambda reactor, address, factory: connectSDP(
            reactor, host, address.port if address else _NOBODY, factory, device=client or device
        ),
        startMessage=lambda port, prefix: f"{prefix} starting on {port.getHost().port}",
        stopMessage=lambda port: f"(SDP Port {port.getHost().port} Closed)",
        requiredInterfaces=(IReactorFDSet, IReactorTime),
        skips=SKIPS,
    )


for _device, _reactors in (
    ("shm0", [*IB_REACTORS, *SOME_REACTORS, IB_ASYNCIO]),
    ("lo0", IB_REACTORS),
):
    globals().update(makeStreamTests(subjectFor(_device), _reactors, __name__))
