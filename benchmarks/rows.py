"""
The rows of the table: a workload, its size, and the ratio to reach.
"""

from __future__ import annotations

from attrs import frozen

KIB = 1024
MIB = 1024 * KIB


@frozen
class Row:
    """
    One workload with one size.

    @ivar workload: A key of C{WORKLOADS} in L{benchmarks.workloads}.
    @ivar metrics: The figures of this workload's result that are compared, as
        (key, unit, more is better).
    @ivar targets: The least ratio by (placement, metric), for C{sdp-ib}, or for C{ib} in a
        row of registered memory.
    @ivar placements: Where the row runs unless all are asked for.
    @ivar needsReactor: Subjects without a reactor leave it out.
    @ivar registered: What subjects with registered memory do instead of C{workload}; nobody
        else but the baseline runs such a row.
    """

    name: str
    title: str
    workload: str
    size: int
    metrics: tuple[tuple[str, str, bool], ...]
    targets: dict[tuple[str, str], float]
    placements: tuple[str, ...] = ("split",)
    needsReactor: bool = False
    registered: str = ""

    @property
    def subject(self) -> str:
        """
        Who should reach the targets.
        """
        return "ib" if self.registered else "sdp-ib"


_LATENCY = (("p50", "us", False), ("p99", "us", False), ("p99.9", "us", False))
_RATE = (("MB/s", "MB/s", True),)
_BULK = (*_RATE, ("CPU", "ns/KiB", False))
_EVERYWHERE = ("split", "same", "free", "contended")


def _stream(name: str, title: str, size: int, target: float, everywhere: bool = False) -> Row:
    """
    A stream of writes of one size; CPU time counts from 64 KiB up.
    """
    targets = {("split", "MB/s"): target}
    if everywhere:
        targets |= {(place, "MB/s"): 1.0 for place in _EVERYWHERE[1:]}
    if size >= 64 * KIB:
        targets[("split", "CPU")] = 5.0
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
    targets = {} if target is None else {("split", "MB/s"): target}
    return Row(name, title, workload, MIB, _BULK, targets, registered=registered)


ROWS: tuple[Row, ...] = (
    Row(
        "rt64",
        "64 B round trip",
        "roundTrip",
        64,
        _LATENCY,
        {
            ("split", "p50"): 10.0,
            ("split", "p99"): 10.0,
            ("same", "p50"): 2.0,
            ("contended", "p50"): 1.5,
            ("free", "p50"): 1.0,
        },
        _EVERYWHERE,
    ),
    Row(
        "rt64k",
        "64 KiB round trip",
        "roundTrip",
        64 * KIB,
        _LATENCY[:2],
        {("split", "p50"): 6.0} | {(place, "p50"): 1.0 for place in ("same", "free", "contended")},
        _EVERYWHERE,
    ),
    Row(
        "rt1m",
        "1 MiB round trip",
        "roundTrip",
        MIB,
        _LATENCY[:2],
        {("split", "p50"): 4.0},
    ),
    _stream("stream64", "stream, 64 B writes", 64, 1.6),
    _stream("stream1k", "stream, 1 KiB writes", KIB, 2.5),
    _stream("stream16k", "stream, 16 KiB writes", 16 * KIB, 4.0),
    _stream("stream64k", "stream, 64 KiB writes", 64 * KIB, 6.0, True),
    _stream("stream1m", "stream, 1 MiB writes", MIB, 6.0),
    _stream("stream1m-cold", "stream, 1 MiB writes, cold source", MIB, 4.0),
    _registered("write1m", "RDMA WRITE, 1 MiB", "stream", "rdmaWrite", 10.0),
    _registered("write1m-cold", "RDMA WRITE, 1 MiB, cold source", "cold", "rdmaWriteCold", 4.5),
    _registered("read1m", "RDMA READ, 1 MiB", "stream", "rdmaRead", None),
    Row(
        "echo1000",
        "64 B echo, 1000 connections",
        "crowd",
        64,
        (("msg/s", "msg/s", True),),
        {("split", "msg/s"): 6.0},
    ),
    Row(
        "connects",
        "connects with first echo",
        "connects",
        64,
        (("conn/s", "conn/s", True),),
        {("split", "conn/s"): 4.0},
    ),
    Row(
        "thread64",
        "64 B round trip through a thread",
        "throughThread",
        64,
        _LATENCY[:2],
        {("split", "p50"): 1.0},
        needsReactor=True,
    ),
    Row(
        "threads",
        "deferToThread beside 64 B round trips",
        "threads",
        64,
        (("calls/s", "calls/s", True),),
        {("split", "calls/s"): 1.0},
        needsReactor=True,
    ),
)

byName: dict[str, Row] = {row.name: row for row in ROWS}
