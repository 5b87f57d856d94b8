"""
The subjects that are compared: a reactor and a pair of endpoint strings each.

A server replaces C{{path}} by the path of a UNIX socket.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from attrs import evolve, frozen

from twisted_ib.tools.compare import subjects
from twisted_ib.tools.compare.subjects import SWITCHED

#: Ends the names of subjects with another tree's code: another commit's, the compiled form of this one, or
#: that other commit's once more.
BEFORE, COMPILED, CONTROL = MARKS = "@before", "@compiled", "@control"
#: The UNIX socket of a service, for its client.
_PATH = "{folder}/{name}"
#: The workloads of each subject without Twisted, by its program.
_LOOP = ("roundTrip", "stream", "cold", "crowd", "scale", "connects", "idle")
_LINK = ("roundTrip", "stream", "cold")
_UCX = ("roundTrip", "stream", "rdmaWrite", "rdmaRead")
#: The workloads in which Twisted's asyncio reactor has a part of its own, whatever the transport.
_THREADS = ("threads", "throughThread")
#: The workloads over packets.
_PACKETS = ("roundTrip", "spaced", "stream")
#: The workloads of messages.
_DATAGRAMS = ("roundTrip", "messages")
#: The workloads of connections between a program's processes.
_PROCESSES = ("roundTrip",)
#: The workloads of work requests.
_VERBS = ("send", "write")


@frozen
class Subject(subjects.Subject):
    """
    One way of moving bytes between two processes.

    @ivar reactor: C{""} for a program without Twisted.
    @ivar messages: It carries messages of at most 64 KiB, and has registered memory.
    @ivar program: The module of this package that both processes run; C{""} if there is a
        program outside for it.
    @ivar workloads: All that it can do; L{None} for everything.
    @ivar clientReactor: The client's reactor, C{""} if it is the server's.
    @ivar family: Which rows it runs: those of the same family.
    @ivar part: The folder of C{twisted_ib} that it needs and an older tree may lack; C{""} if none.
    @ivar tree: The folder whose code it runs; C{""} for this checkout.
    @ivar rules: Those of the offload protocol switch in both processes, a line each; C{""} for those of the
        environment.
    @ivar devices: The devices of both processes, as C{TWISTED_IB_DEVICES} names them; C{""} likewise.
    """

    program: str = "worker"
    messages: bool = False
    workloads: tuple[str, ...] | None = None
    clientReactor: str = ""
    family: str = ""
    part: str = ""
    tree: str = ""
    rules: str = ""
    devices: str = ""

    @property
    def isOurs(self) -> bool:
        """
        Whether it runs code of this project, which another tree may have otherwise.
        """
        return self.server.startswith(("sdp", "ib", "rds", "ipoib", "queues", "verbs", SWITCHED))

    @property
    def base(self) -> str:
        """
        The name, without the mark of another tree.
        """
        return self.name.partition("@")[0]

    def ofTree(self, mark: str, tree: str) -> Subject:
        """
        @param mark: One of L{MARKS}.
        @param tree: A folder with another commit of this project, or its compiled form.

        @return: The same subject with that code, at addresses of its own.
        """
        # The processes of all trees run at once: on packets each has port 4791 of an address to itself,
        # and on the one subnet no address stands for two.
        third = 1 + MARKS.index(mark)
        network = "127.0.0." if "roce" in self.server + self.client else "10.9.0."
        server, client = (
            each.replace(network, f"{network[:-2]}{third}.") for each in (self.server, self.client)
        )
        return evolve(
            self,
            name=self.name + mark,
            title=f"{self.title}, {mark[1:]}",
            server=server,
            client=client,
            tree=tree,
        )

    def absence(self) -> str:
        """
        @return: Why it cannot run here, C{""} if it can.
        """
        if self.tree and not os.path.isdir(os.path.join(self.tree, "twisted_ib", self.part)):
            return f"there is no twisted_ib/{self.part} in {self.tree}"
        if self.package and find_spec(self.package) is None:
            return f"{self.package} cannot be imported"
        if not self.program and shutil.which(UCX_PROGRAM) is None:
            return f"{UCX_PROGRAM} is not installed"
        return ""


def _ofMessages(name: str, title: str, reactor: str, server: str, client: str = "") -> Subject:
    """
    A subject that carries messages: its kind, and for RDS its device and addresses.
    """
    return Subject(
        name,
        title,
        reactor,
        server,
        f"{client or server} {{port}}",
        program="datagrams",
        workloads=_DATAGRAMS,
        family="datagrams",
    )


def _ofLibrary(name: str, title: str, package: str) -> Subject:
    """
    A subject of L{benchmarks.links}.
    """
    return Subject(name, title, "", package, _PATH, program="links", workloads=_LINK, package=package)


def _ofProcesses(name: str, title: str, package: str = "", part: str = "") -> Subject:
    """
    A subject of L{benchmarks.links} that is measured against connections of C{multiprocessing}.
    """
    library = package or name
    return Subject(
        name,
        title,
        "",
        library,
        _PATH,
        program="links",
        workloads=_PROCESSES,
        family="processes",
        package=package,
        part=part,
    )


_TCP = ("tcp:0:interface=127.0.0.1:backlog=1024", "tcp:127.0.0.1:{port}")
_SDP = ("sdp:0:interface=127.0.0.1:backlog=1024", "sdp:127.0.0.1:{port}")
#: The connections of one CPU, which gain nothing, go over SDP, too.
_TO_SDP = "use sdp server * *:*\nuse sdp client * *:*\n"
#: The C{ib} reactor leaves connections to TCP.
TO_TCP = "use tcp server * *:*\nuse tcp client * *:*\n"
_IB = ("ib:0:interface=127.0.0.1:backlog=1024", "ib:127.0.0.1:{port}")


def _ofVerbs(device: str) -> Subject:
    """
    A subject of L{benchmarks.verbs}.
    """
    return Subject(
        name=f"verbs-{device}",
        title=f"verbs, {device}",
        reactor="",
        server=f"verbs {device}",
        client=f"{device} {{port}}",
        program="verbs",
        workloads=_VERBS,
        family="verbs",
        part="verbs/pyverbs",
    )


def _ofSwitched(name: str, title: str, devices: str = "") -> Subject:
    """
    A subject whose connections of TCP switch to iWARP before they are measured.
    """
    return Subject(
        name,
        title,
        "ib",
        SWITCHED + _TCP[0],
        SWITCHED + _TCP[1],
        workloads=_LINK,
        family="switched",
        rules=TO_TCP,
        devices=devices,
    )


def _overRoCE(server: str, client: str) -> tuple[str, str]:
    """
    Endpoints of two processes, each with an address of its own.
    """
    return (
        f"sdp:0:interface={server}:device=roce0:backlog=1024",
        f"sdp:{server}:{{port}}:bindAddress={client}:device=roce0",
    )


#: The baseline of every ratio, in the same round, by family.
BASELINES = {
    "": "tcp",
    "packets": "blocking-tcp",
    "switched": "blocking-tcp",
    "blocking": "blocking-tcp",
    "datagrams": "int32",
    "processes": "pipe",
    "verbs": "verbs-lo0",
}

BASELINE = BASELINES[""]
#: Of the UCX library.
UCX_PROGRAM = "ucx_perftest"

SUBJECTS: tuple[Subject, ...] = (
    Subject("tcp", "TCP, NODELAY", "epoll", *_TCP, noDelay=True),
    Subject("sdp-ib", "sdp: on ib", "ib", *_SDP),
    Subject("ib", "ib: on ib", "ib", *_IB, messages=True),
    Subject("sdp-epoll", "sdp: on epoll", "epoll", *_SDP),
    Subject("sdp-asyncio", "sdp: on asyncio", "asyncio", *_SDP),
    Subject("tcp-asyncio", "TCP on asyncio", "asyncio", *_TCP, noDelay=True, workloads=_THREADS),
    Subject("tcp-nagle", "TCP, Nagle", "epoll", *_TCP),
    Subject("unix", "UNIX", "epoll", "unix:{path}:backlog=1024", "unix:{folder}/{name}"),
    Subject("asyncio", "asyncio", "", "asyncio", "{port}", program="loops", workloads=_LOOP),
    Subject("uvloop", "uvloop", "", "uvloop", "{port}", program="loops", workloads=_LOOP, package="uvloop"),
    Subject("blocking", "blocking UNIX", "", "{path}", _PATH, program="blocking", workloads=_LOOP),
    _ofLibrary("multiprocessing", "multiprocessing.connection", "multiprocessing"),
    _ofLibrary("zmq", "pyzmq, ipc://", "zmq"),
    _ofLibrary("iceoryx2", "iceoryx2, busy loops", "iceoryx2"),
    Subject("ucx", "UCX shared memory", "", "", "", program="", workloads=_UCX),
    Subject(
        name="blocking-tcp",
        title="blocking TCP",
        reactor="",
        server="127.0.0.1",
        client="127.0.0.1 {port}",
        program="blocking",
        workloads=_PACKETS,
        family="packets",
    ),
    Subject(
        "blocking-sdp",
        "blocking sockets over SDP",
        "",
        "sdp 127.0.0.1",
        "sdp 127.0.0.1 {port}",
        program="blocking",
        workloads=_PROCESSES,
        family="blocking",
        rules=_TO_SDP,
    ),
    Subject(
        "sdp-roce",
        "sdp: on ib, roce0",
        "ib",
        *_overRoCE("127.0.0.1", "127.0.0.2"),
        workloads=_PACKETS,
        family="packets",
    ),
    Subject(
        "sdp-roce-epoll",
        "sdp: on epoll, roce0",
        "epoll",
        *_overRoCE("127.0.0.3", "127.0.0.4"),
        workloads=_PACKETS,
        family="packets",
    ),
    _ofMessages("int32", "Int32StringReceiver, TCP, NODELAY", "epoll", "int32"),
    _ofMessages("udp", "UDP, which loses", "epoll", "udp"),
    _ofMessages(
        "udp-ipoib",
        "UDP over IPoIB on ib, ib0, which loses",
        "ib",
        "ipoib ib0 10.9.0.1/24",
        "ipoib ib0 10.9.0.2/24 10.9.0.1",
    ),
    _ofProcesses("pipe", "multiprocessing.connection"),
    _ofProcesses("queues", "twisted_ib.queues", part="queues"),
    _ofProcesses("queue", "multiprocessing.Queue"),
    _ofProcesses("queues-queue", "twisted_ib.queues.Queue", part="queues"),
    _ofProcesses("zmq-pair", "pyzmq, ipc://", "zmq"),
    _ofProcesses("iceoryx2-pair", "iceoryx2, busy loops", "iceoryx2"),
    _ofMessages("rds-ib", "RDS on ib, shm0", "ib", "rds"),
    _ofMessages("rds-epoll", "RDS on epoll, shm0", "epoll", "rds"),
    _ofMessages(
        "rds-roce",
        "RDS on ib, roce0",
        "ib",
        "rds roce0 127.0.0.5",
        "rds roce0 127.0.0.6 127.0.0.5",
    ),
    _ofSwitched("iwarp", "TCP on ib, switched to iWARP"),
    _ofSwitched("iwarp-crc", "the same with CRC", "iwarp0=iwarp:127.0.0.1:crc=yes"),
    _ofVerbs("lo0"),
    _ofVerbs("shm0"),
)

byName: dict[str, Subject] = {subject.name: subject for subject in SUBJECTS}
