"""
What twisted_ib adds to Twisted by name: the reactor C{ib} and endpoints C{sdp:}, C{ib:}, C{rds:} and
C{direct:}.

Twisted imports every plugin module, before it chooses a reactor, whenever its
cache is rebuilt. So nothing here, nor what it imports, may import a reactor.
"""

from __future__ import annotations

from twisted.application.reactors import Reactor

from twisted_ib.internet.strings import DelegatingParser, EndpointParser

ib = Reactor(
    "ib",
    "twisted_ib.reactor.ibreactor",
    "epoll reactor that looks at the completion queues of an HCA before it sleeps.",
)

sdp = EndpointParser("sdp", "twisted_ib.sdp", "SDPServerEndpoint", "SDPClientEndpoint")
messages = EndpointParser("ib", "twisted_ib.rdma", "RDMAServerEndpoint", "RDMAClientEndpoint")
datagrams = EndpointParser(
    "rds", "twisted_ib.rds", "RDSServerEndpoint", "RDSClientEndpoint"
)
direct = DelegatingParser("direct", "twisted_ib.reactor.switch.bypass", "serverEndpoint", "clientEndpoint")
