"""
The subjects of C{ib-perf compare}, the placements of their processes, and the rows.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from attrs import evolve, frozen
from twisted.internet.endpoints import quoteStringArgument

from twisted_ib import limits
from twisted_ib.tools.compare.measuring import LATENCY, THROUGHPUT

#: The roles of a subject's processes.
SERVER, CLIENT = "server", "client"


@frozen
class Subject:
    """
    A way of moving bytes between two processes.

    The protocols are the same for all of one program; only these strings differ.

    @ivar reactor: the reactor's name as C{twistd --reactor} takes it, or that of asyncio's loop.
    @ivar server: the endpoint for the server, if it runs under Twisted.  C{{name}} is the service's,
        C{{folder}} one for UNIX sockets.
    @ivar client: the endpoint for the client; C{{port}} is the server's.
    @ivar program: the module of this folder that both processes run.
    @ivar noDelay: C{TCP_NODELAY} is set on both ends.
    @ivar most: the longest message in bytes.
    @ivar package: the package that it needs; C{""} if none.
    """

    name: str
    title: str
    reactor: str
    server: str
    client: str
    program: str = "twistedprocess"
    noDelay: bool = False
    most: int = sys.maxsize
    package: str = ""

    @property
    def isOurs(self) -> bool:
        """
        Whether it is this package's.
        """
        return self.client.startswith(("sdp:", "ib:", SWITCHED)) or self.reactor == AIO

    def on(self, device: str, address: str) -> Subject:
        """
        @param address: the device's own.
        @return: this subject on a device; itself where its endpoints can name none.
        """
        if not self.client.startswith(("sdp:", "ib:")):
            return self
        own = quoteStringArgument(address)
        server, client = (
            f"{each.replace(LOOPBACK, own)}:device={device}" for each in (self.server, self.client)
        )
        return evolve(self, title=f"{self.title}, {device}", server=server, client=client)

    def absence(self) -> str:
        """
        @return: why it cannot run here; C{""} if it can.
        """
        return f"{self.package} is not installed" if self.package and not find_spec(self.package) else ""


#: The event loop of C{twisted_ib.aio}.
AIO = "aio"
#: Begins the endpoint strings of TCP connections that switch to RDMA before they are measured.
SWITCHED = "switched "

#: Where all listen that have no other address.
LOOPBACK = "127.0.0.1"
_TCP = (f"tcp:0:interface={LOOPBACK}", f"tcp:{LOOPBACK}:{{port}}")
_SDP = (f"sdp:0:interface={LOOPBACK}", f"sdp:{LOOPBACK}:{{port}}")
_IB = (f"ib:0:interface={LOOPBACK}", f"ib:{LOOPBACK}:{{port}}")
_SWITCHED = (SWITCHED + _TCP[0], SWITCHED + _TCP[1])
_UNIX = ("unix:{folder}/{name}", "unix:{folder}/{name}")

#: All subjects, in the order of each row.
SUBJECTS: tuple[Subject, ...] = (
    Subject("tcp", "TCP", "epoll", *_TCP),
    Subject("tcp-nodelay", "TCP, NODELAY", "epoll", *_TCP, noDelay=True),
    Subject("sdp", "sdp:", "ib", *_SDP),
    Subject("sdp-epoll", "sdp:, epoll", "epoll", *_SDP),
    Subject("sdp-asyncio", "sdp:, ib-asyncio", "ib-asyncio", *_SDP),
    Subject("ib", "ib:", "ib", *_IB, most=limits.INLINE_MESSAGE),
    Subject("switched", "TCP, switched", "epoll", *_SWITCHED, most=limits.INLINE_MESSAGE),
    Subject("unix", "UNIX", "epoll", *_UNIX),
    Subject("asyncio", "asyncio, TCP", "asyncio", "", "{port}", "asyncioprocess"),
    Subject(AIO, "asyncio, SDP", AIO, "", "{port}", "asyncioprocess"),
    Subject("uvloop", "uvloop, TCP", "uvloop", "", "{port}", "asyncioprocess", package="uvloop"),
)

#: The subject that others are compared with, where it takes part.
BASELINE = "tcp-nodelay"

#: Completes the titles.
LEGEND = (
    "TCP and UNIX run on Twisted's epoll reactor, as does TCP that switches to iWARP before it is measured;"
    " sdp: and ib: on the ib reactor where none is named,"
    " asyncio and uvloop with BufferedProtocol and NODELAY; asyncio over SDP on twisted_ib.aio's event loop."
)


@frozen
class Placement:
    """
    The CPUs of a subject's two processes.

    @ivar server: the index of the server's CPU among those that we may use; L{None} for all of them.
    @ivar client: the client's.
    """

    name: str
    title: str
    server: int | None
    client: int | None

    def absence(self) -> str:
        """
        @return: why it is not possible here; C{""} if it is.
        """
        needed = len({self.server, self.client})
        return "there is one CPU" if needed > len(os.sched_getaffinity(0)) else ""


#: The placements, with the words of C{benchmarks/}.
PLACEMENTS: tuple[Placement, ...] = (
    Placement("split", "each end on a CPU of its own", 0, 1),
    Placement("same", "both ends on one CPU", 0, 0),
)


@frozen
class Measure:
    """
    A figure.

    @ivar key: its name among those that a client answers.
    @ivar isTime: less of it is better.
    """

    name: str
    title: str
    key: str
    unit: str
    isTime: bool

    @property
    def better(self) -> str:
        """
        The better direction in a word.
        """
        return "less" if self.isTime else "more"


MEASURES: tuple[Measure, ...] = (
    Measure(LATENCY, "Round trip of {size}", "p50", "us", True),
    Measure(THROUGHPUT, "Stream of writes of {size}", "MB/s", "MB/s", False),
)


@frozen
class Row:
    """
    One measure of one size in one placement: all subjects of a row are measured right after each other.

    @ivar size: bytes of a message, or of a write.
    """

    placement: Placement
    measure: Measure
    size: int

    @property
    def title(self) -> str:
        """
        The measure and the size, without the placement.
        """
        return self.measure.title.format(size=inUnits(self.size))


def inUnits(size: int) -> str:
    """
    @return: bytes in words.
    """
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
