"""
The plugins of twisted_ib: the reactors C{ib} and C{ib-asyncio}, and endpoints C{sdp:}, C{ib:}, C{rds:} and
C{direct:}.

Twisted imports every plugin module, before it chooses a reactor, whenever its
cache is rebuilt. So nothing here, nor what it imports, may import a reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.application.reactors import Reactor

from twisted_ib.internet.strings import DelegatingParser, EndpointParser, FramedParser

ib = Reactor(
    "ib",
    "twisted_ib.reactor.ibreactor",
    "epoll reactor that looks at the completion queues of an HCA before it sleeps.",
)
ibAsyncio = Reactor(
    "ib-asyncio",
    "twisted_ib.reactor.asyncioreactor",
    "asyncio reactor that looks at the completion queues of an HCA before it sleeps.",
)


def _interfaces() -> None:
    # Only where a device is configured with an address of IPoIB: most programs need no module of it.
    from twisted_ib.hca.device.registry import deviceNames, interfaceOf

    if any(map(interfaceOf, deviceNames())):
        from twisted_ib.ipoib import resolver  # noqa: F401


def _sdp() -> Any:
    from twisted_ib import sdp

    _interfaces()
    return sdp


def _rdma() -> Any:
    from twisted_ib import rdma

    _interfaces()
    return rdma


def _framedSDP() -> Any:
    from functools import partial
    from types import SimpleNamespace

    from twisted_ib.hca.connection.rdmacm import PortSpace

    server, client = _sdp().SDPServerEndpoint, _sdp().SDPClientEndpoint
    return SimpleNamespace(
        RDMAServerEndpoint=partial(server, portSpace=PortSpace.IB),
        RDMAClientEndpoint=partial(client, portSpace=PortSpace.IB),
    )


def _rds() -> Any:
    from twisted_ib import rds

    _interfaces()
    return rds


def _bypass() -> Any:
    from twisted_ib.switch import bypass

    return bypass


sdp = EndpointParser("sdp", _sdp, "SDPServerEndpoint", "SDPClientEndpoint")
messages = FramedParser("ib", _rdma, "RDMAServerEndpoint", "RDMAClientEndpoint", sdp=_framedSDP)
datagrams = EndpointParser("rds", _rds, "RDSServerEndpoint", "RDSClientEndpoint")
direct = DelegatingParser("direct", _bypass, "serverEndpoint", "clientEndpoint")
