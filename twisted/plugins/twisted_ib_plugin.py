"""
The plugins of twisted_ib: the reactors C{ib} and C{ib-asyncio}, and endpoints C{sdp:}, C{ib:}, C{rds:} and
C{direct:}.

Twisted imports every plugin module, before it chooses a reactor, whenever its
cache is rebuilt. So nothing here, nor what it imports, may import a reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.application.reactors import Reactor

from twisted_ib.internet.strings import DelegatingParser, EndpointParser

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


def _sdp() -> Any:
    from twisted_ib import sdp

    return sdp


def _rdma() -> Any:
    from twisted_ib import rdma

    return rdma


def _rds() -> Any:
    from twisted_ib import rds

    return rds


def _bypass() -> Any:
    from twisted_ib.reactor.switch import bypass

    return bypass


sdp = EndpointParser("sdp", _sdp, "SDPServerEndpoint", "SDPClientEndpoint")
messages = EndpointParser("ib", _rdma, "RDMAServerEndpoint", "RDMAClientEndpoint")
datagrams = EndpointParser("rds", _rds, "RDSServerEndpoint", "RDSClientEndpoint")
direct = DelegatingParser("direct", _bypass, "serverEndpoint", "clientEndpoint")
