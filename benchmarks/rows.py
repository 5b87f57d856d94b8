"""
The rows of the table: a workload, its size, and what to reach.
"""

from __future__ import annotations

from attrs import frozen

from benchmarks.transports import BASELINES

KIB = 1024
MIB = 1024 * KIB


@frozen
class Target:
    """
    The target of a figure.

    @ivar bound: The number.
    @ivar kind: C{"times"}: at least so many times better than the baseline, by the median of the
        per-round ratios; C{"most"}: the figure itself is at most that; C{"over"}: it is at most
        that much more than the baseline's.
    """

    bound: float
    kind: str = "times"


Targets = dict[tuple[str, str], Target]


@frozen
class Row:
    """
    One workload with one size.

    @ivar workload: A key of C{WORKLOADS} in L{benchmarks.workloads}, or of C{STARTS} in
        L{benchmarks.startup}.
    @ivar metrics: The figures of this workload's result that are compared, as
        (key, unit, more is better).
    @ivar targets: By (placement, metric), for C{sdp-ib}, or for C{ib} in a row of registered memory.
    @ivar placements: Where the row runs unless all are asked for.
    @ivar needsReactor: Subjects without Twisted's reactor leave it out.
    @ivar registered: The workload of subjects with registered memory, instead of C{workload}; of the others
        only the baseline, and UCX, which has it too, run such a row.
    @ivar count: Connections.
    @ivar isFresh: Each run has processes of its own, whose memory has no past.  That takes long:
        only the baseline and the subject of the targets run it in every round.
    @ivar isStart: Whether the start of a program is measured.
    @ivar family: The subjects that run it: those of the same family.
    """

    name: str
    title: str
    workload: str
    size: int
    metrics: tuple[tuple[str, str, bool], ...]
    targets: Targets
    placements: tuple[str, ...] = ("split",)
    needsReactor: bool = False
    registered: str = ""
    count: int = 1
    isFresh: bool = False
    isStart: bool = False
    family: str = ""

    @property
    def subject(self) -> str:
        """
        The subject that should reach the targets.
        """
        if self.family:
            return _FOREMOST[self.family]
        return "ib" if self.registered else "sdp-ib"

    @property
    def baseline(self) -> str:
        """
        Whom ratios are against.
        """
        return BASELINES[self.family]

    @property
    def isBulk(self) -> bool:
        """
        Whether bytes are what is counted, many at a time.
        """
        return self.metrics == _BULK


#: Twisted's TCP moves between 2.5 and 5.8 GB/s: the targets of bulk rows are for one of at most
#: this, in MB/s.
BULK_CEILING = 3500.0

#: The subject that should reach the targets of a family's rows.
_FOREMOST = {
    "packets": "sdp-roce",
    "switched": "iwarp",
    "blocking": "blocking-sdp",
    "datagrams": "rds-ib",
    "processes": "queues",
    "verbs": "verbs-shm0",
}

_LATENCY = (("p50", "us", False), ("p99", "us", False), ("p99.9", "us", False))
_RATE = (("MB/s", "MB/s", True),)
_BULK = (*_RATE, ("CPU", "ns/KiB", False))
_CROWD = (("msg/s", "msg/s", True), ("CPU/msg", "us", False))
_EVERYWHERE = ("split", "same", "free", "contended")


def _times(metric: str, **bounds: float) -> Targets:
    """
    Ratios to reach, by placement.
    """
    return {(placement, metric): Target(bound) for placement, bound in bounds.items()}


def _roundTrip(name: str, title: str, size: int, targets: Targets, everywhere: bool = False) -> Row:
    """
    One message out and back.
    """
    metrics = _LATENCY if size <= 64 * KIB else _LATENCY[:2]
    placements = _EVERYWHERE if everywhere else ("split",)
    return Row(name, title, "roundTrip", size, metrics, targets, placements)


def _stream(name: str, title: str, size: int, target: float | None, everywhere: bool = False) -> Row:
    """
    A stream of writes of one size; CPU time counts from 64 KiB up.
    """
    targets = {} if target is None else _times("MB/s", split=target)
    if everywhere:
        targets |= _times("MB/s", same=1, free=1, contended=1)
    if size >= 64 * KIB:
        targets |= _times("CPU", split=5)
    return Row(
        name=name,
        title=title,
        workload="cold" if name.endswith("cold") else "stream",
        size=size,
        metrics=_BULK if size >= 64 * KIB else _RATE,
        targets=targets,
        placements=_EVERYWHERE if everywhere else ("split",),
    )


def _registered(name: str, title: str, workload: str, registered: str, target: float | None) -> Row:
    """
    1 MiB requests between registered regions beside the baseline's stream of 1 MiB writes.
    """
    targets = {} if target is None else _times("MB/s", split=target)
    return Row(name, title, workload, MIB, _BULK, targets, registered=registered)


def _packets(name: str, title: str, workload: str, size: int, targets: Targets) -> Row:
    """
    A row of packets, beside blocking TCP.
    """
    metrics = _BULK if workload == "stream" else _LATENCY[:2]
    return Row(name, title, workload, size, metrics, targets, family="packets")


def _switched(name: str, title: str, workload: str, size: int, targets: Targets) -> Row:
    """
    A row of connections that have switched to iWARP, beside blocking TCP.
    """
    metrics = _BULK if workload == "stream" else _LATENCY[:2]
    return Row(name, title, workload, size, metrics, targets, family="switched")


def _blocking(name: str, title: str, size: int) -> Row:
    """
    A row of blocking sockets, beside blocking TCP.
    """
    return Row(name, title, "roundTrip", size, _LATENCY[:2], {}, ("split", "same"), family="blocking")


def _verbs(name: str, title: str, workload: str) -> Row:
    """
    Work requests one after the other.
    """
    targets = {("split", "p50"): Target(12, "most")}
    return Row(name, title, workload, 64, _LATENCY[:2], targets, family="verbs")


def _messages(name: str, title: str, size: int) -> Row:
    """
    Messages in one direction, beside strings on TCP.
    """
    metrics = (("msg/s", "msg/s", True), ("CPU/msg", "us", False), ("lost", "%", False))
    targets = _times("msg/s", split=3)
    return Row(name, title, "messages", size, metrics, targets, family="datagrams")


def _start(name: str, title: str, workload: str) -> Row:
    """
    The start of a program; the kernel chooses where.
    """
    metrics = (("wall", "ms", False), ("CPU", "ms", False))
    targets = {("free", "wall"): Target(30, "over")}
    return Row(name, title, workload, 0, metrics, targets, ("free",), needsReactor=True, isStart=True)


ROWS: tuple[Row, ...] = (
    _roundTrip(
        "rt64",
        "64 B round trip",
        64,
        _times("p50", split=10, same=2, contended=1.5, free=1) | _times("p99", split=10),
        True,
    ),
    _roundTrip(
        "rt64k",
        "64 KiB round trip",
        64 * KIB,
        _times("p50", split=6, same=1, contended=1, free=1),
        True,
    ),
    _roundTrip("rt1m", "1 MiB round trip", MIB, _times("p50", split=4)),
    _roundTrip("rt4m", "4 MiB round trip", 4 * MIB, _times("p50", split=3)),
    _stream("stream64", "stream, 64 B writes", 64, 1.6),
    _stream("stream1k", "stream, 1 KiB writes", KIB, 2.5),
    _stream("stream16k", "stream, 16 KiB writes", 16 * KIB, 4.0),
    _stream("stream64k", "stream, 64 KiB writes", 64 * KIB, 6.0, True),
    _stream("stream1m", "stream, 1 MiB writes", MIB, 6.0),
    _stream("stream1m-cold", "stream, 1 MiB writes, cold source", MIB, 4.0),
    _stream("stream4m", "stream, 4 MiB writes", 4 * MIB, None),
    _registered("write1m", "RDMA WRITE, 1 MiB", "stream", "rdmaWrite", 10.0),
    _registered("write1m-cold", "RDMA WRITE, 1 MiB, cold source", "cold", "rdmaWriteCold", 4.5),
    _registered("read1m", "RDMA READ, 1 MiB", "stream", "rdmaRead", None),
    Row("echo100", "64 B echo, 100 connections", "crowd", 64, _CROWD, {}, count=100),
    Row(
        "echo1000",
        "64 B echo, 1000 connections",
        "crowd",
        64,
        _CROWD,
        _times("msg/s", split=6),
        count=1000,
    ),
    Row(
        "echo10000",
        "64 B echo, 10,000 connections",
        "scale",
        64,
        (
            *_CROWD,
            ("growth", "MB", False),
            ("cost", "times that of 100", False),
            ("CPU cost", "times that of 100", False),
        ),
        _times("msg/s", split=6)
        | {
            ("split", "growth"): Target(20, "most"),
            ("split", "cost"): Target(1.5, "most"),
            ("split", "CPU cost"): Target(1.5, "most"),
        },
        count=10_000,
        isFresh=True,
    ),
    Row(
        "connects",
        "connects with first echo",
        "connects",
        64,
        (("conn/s", "conn/s", True), ("CPU/conn", "us", False)),
        _times("conn/s", split=4),
    ),
    Row(
        "idle",
        "idle connection",
        "idle",
        64,
        (
            ("memory", "KiB", False),
            ("user", "KiB", False),
            ("kernel", "KiB", False),
            ("CPU", "% of a CPU, 4000 of them", False),
        ),
        {("split", "memory"): Target(3, "most"), ("split", "CPU"): Target(0.25, "most")},
        count=4000,
        isFresh=True,
    ),
    Row(
        "thread64",
        "64 B round trip through a thread",
        "throughThread",
        64,
        _LATENCY[:2],
        _times("p50", split=1),
        needsReactor=True,
    ),
    Row(
        "threads",
        "deferToThread beside 64 B round trips",
        "threads",
        64,
        (("calls/s", "calls/s", True),),
        _times("calls/s", split=1),
        needsReactor=True,
    ),
    _packets("roce64", "RoCEv2: 64 B round trip", "roundTrip", 64, _times("p50", split=2.5)),
    _packets("roce64-asleep", "RoCEv2: 64 B round trip, asleep", "spaced", 64, _times("p50", split=0.6)),
    # No less than it was: README.md says what keeps it from more.
    _packets("roce1m", "RoCEv2: stream, 1 MiB writes", "stream", MIB, _times("MB/s", split=0.29)),
    _switched("iwarp64", "iWARP: 64 B round trip", "roundTrip", 64, {}),
    _switched("iwarp64k", "iWARP: stream, 64 KiB writes", "stream", 64 * KIB, _times("MB/s", split=0.9)),
    _blocking("sockets64", "blocking sockets: 64 B round trip", 64),
    _blocking("sockets1m", "blocking sockets: 1 MiB round trip", MIB),
    _verbs("verbs-send", "verbs: 64 B SEND, posted and polled", "send"),
    _verbs("verbs-write", "verbs: 64 B RDMA WRITE, posted and polled", "write"),
    Row(
        "dg64",
        "datagrams: 64 B round trip",
        "roundTrip",
        64,
        _LATENCY[:2],
        _times("p50", split=1, same=1, free=1, contended=1),
        _EVERYWHERE,
        family="datagrams",
    ),
    _messages("dgs64", "datagrams: 64 B", 64),
    _messages("dgs1k", "datagrams: 1 KiB", KIB),
    _messages("dgs16k", "datagrams: 16 KiB", 16 * KIB),
    _messages("dgs64k", "datagrams: 64 KiB", 64 * KIB),
    Row(
        "mp64",
        "between processes: 64 B round trip",
        "roundTrip",
        64,
        _LATENCY[:2],
        _times("p50", split=4.6, same=1),
        _EVERYWHERE,
        family="processes",
    ),
    Row(
        "mp1m",
        "between processes: round trip of a 1 MiB array",
        "roundTrip",
        MIB,
        _LATENCY[:2],
        _times("p50", split=3),
        family="processes",
    ),
    _start("import", "import twisted_ib (TCP: nothing)", "import"),
    _start("twistd", "twistd --reactor", "twistd"),
)

#: The targets of the compiled form, by row.
COMPILED_TARGETS: dict[str, Targets] = {
    "rt64": _times("p50", split=20, same=3, contended=8) | _times("p99", split=16),
    "rt64k": _times("p50", split=9),
    "rt1m": _times("p50", split=4),
    "stream64": _times("MB/s", split=3.3),
    "stream1k": _times("MB/s", split=4),
    "stream16k": _times("MB/s", split=3.5),
    "stream64k": _times("MB/s", split=6) | _times("CPU", split=5),
    "stream1m": _times("MB/s", split=6) | _times("CPU", split=5),
    "stream1m-cold": _times("MB/s", split=4.5),
    "echo1000": _times("msg/s", split=8),
    "echo10000": _times("msg/s", split=9),
    "connects": _times("conn/s", split=2.5),
    **{name: _times("msg/s", split=3) for name in ("dgs64", "dgs1k", "dgs16k", "dgs64k")},
    "mp64": _times("p50", split=6.2),
}

byName: dict[str, Row] = {row.name: row for row in ROWS}
