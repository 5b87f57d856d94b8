"""
What is compared: a reactor and a pair of endpoint strings.

The protocols in L{benchmarks.protocols} are the same for every subject; only
these strings differ.  C{{path}} stands for a UNIX socket path, C{{port}} for
the port that the server got.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Subject:
    """
    One way of moving bytes between two processes.

    @ivar reactor: The reactor's name as C{twistd --reactor} takes it, or C{""}
        for L{benchmarks.blocking}, which has none.
    @ivar noDelay: C{TCP_NODELAY} is set on both ends.
    @ivar messages: It carries messages of at most 64 KiB, and has registered memory.
    """

    name: str
    title: str
    reactor: str
    server: str
    client: str
    noDelay: bool = False
    messages: bool = False


_TCP = ("tcp:0:interface=127.0.0.1:backlog=1024", "tcp:127.0.0.1:{port}")
_SDP = ("sdp:0:interface=127.0.0.1:backlog=1024", "sdp:127.0.0.1:{port}")
_IB = ("ib:0:interface=127.0.0.1:backlog=1024", "ib:127.0.0.1:{port}")

#: Every ratio is against this one, in the same round.
BASELINE = "tcp"

SUBJECTS: tuple[Subject, ...] = (
    Subject("tcp", "TCP, NODELAY", "epoll", *_TCP, noDelay=True),
    Subject("sdp-ib", "sdp: on ib", "ib", *_SDP),
    Subject("tcp-nagle", "TCP, Nagle", "epoll", *_TCP),
    Subject("sdp-epoll", "sdp: on epoll", "epoll", *_SDP),
    Subject("ib", "ib: on ib", "ib", *_IB, messages=True),
    Subject("unix", "UNIX", "epoll", "unix:{path}:backlog=1024", "unix:{path}"),
    Subject("blocking", "blocking UNIX", "", "{path}", "{path}"),
)

byName: dict[str, Subject] = {subject.name: subject for subject in SUBJECTS}
