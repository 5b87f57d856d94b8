"""
The steps of work requests of 64 bytes with the names of verbs: made, posted, polled.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from benchmarks.stepping import clockNanoseconds
from benchmarks.steps import Table
from twisted_ib.verbs.pyverbs import (
    CQ,
    MR,
    PD,
    QP,
    SGE,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    enums,
)

SIZE = 64
#: Requests of one run, each of which completes before the next: few, so that some runs are not interrupted.
REQUESTS = 40
#: How many times more runs there are, for that.
MORE = 10
DEVICES = ("lo0", "shm0")
_REGION = 4096
_RIGHTS = int(enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE)
_WRITE = int(enums.IBV_WR_RDMA_WRITE)
#: Polls until the path between the two ends is found.
_POLLS = 10000


class End:
    """
    One end of a reliable connection.
    """

    def __init__(self, device: str) -> None:
        """
        Everything that it takes, not connected.
        """
        self.ctx = Context(name=device)
        self.pd = PD(self.ctx)
        self.region = MR(self.pd, _REGION, _RIGHTS)
        self.cq = CQ(self.ctx, 16)
        sizes = QPCap(8, 8, 1, 1, 0)
        self.qp = QP(self.pd, QPInitAttr(enums.IBV_QPT_RC, None, self.cq, self.cq, None, sizes, 0))

    def connect(self, peer: End) -> None:
        """
        Go to RTS.
        """
        attr = QPAttr()
        attr.qp_access_flags = _RIGHTS
        attr.ah_attr = AHAttr(is_global=1, gr=GlobalRoute(peer.ctx.query_gid(1, 0)))
        attr.dest_qp_num = peer.qp.qp_num
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        self.qp.to_rts(attr)

    def polled(self, _: object = None) -> None:
        """
        Poll until there is a completion.
        """
        for _ in range(_POLLS):
            if self.cq.poll(1)[0]:
                return
        raise AssertionError("a request did not complete")


class Pair:
    """
    Two connected ends on one HCA, and the requests from one to the other.
    """

    def __init__(self, device: str) -> None:
        """
        Connect them, and send a message, which finds the path.
        """
        self.one, self.two = one, two = End(device), End(device)
        one.connect(two)
        two.connect(one)
        self._here = one.region.buf, SIZE, one.region.lkey
        self._there = two.region.buf, SIZE, two.region.lkey
        two.qp.post_recv(self.receive())
        one.qp.post_send(self.send())
        one.polled()
        two.polled()

    def receive(self, _: object = None) -> RecvWR:
        """
        Make a receive request.
        """
        return RecvWR(1, 1, [SGE(*self._there)])

    def send(self, _: object = None) -> SendWR:
        """
        Make a SEND.
        """
        return SendWR(2, num_sge=1, sg=[SGE(*self._here)])

    def write(self, _: object = None) -> SendWR:
        """
        Make a WRITE.
        """
        request = SendWR(3, _WRITE, 1, 0, [SGE(*self._here)])
        address, _, key = self._there
        request.set_wr_rdma(key, address)
        return request

    def close(self) -> None:
        """
        Close both contexts, and with them everything else.
        """
        self.one.ctx.close()
        self.two.ctx.close()


def measure(runs: int) -> list[Table]:
    """
    A table for each device.
    """
    return [_table(device, runs) for device in DEVICES]


def _table(device: str, runs: int) -> Table:
    both = Pair(device)
    one, two = both.one, both.two
    arrive: Callable[[int], int] = two.qp._core.path.progress  # type: ignore[union-attr]

    def deliver(_: object) -> int:
        """
        The peer's part, alone.

        @return: how many completions the next step polls for.
        """
        assert arrive(1), "a request was not sent"
        return 1

    post, poll = one.qp.post_send, one.cq.poll
    send = _timed(runs, both.receive, two.qp.post_recv, both.send, post, deliver, poll, two.polled)
    write = _timed(runs, both.write, post, deliver, poll)
    both.close()
    table = Table(f"Verbs on {device}, 64 B", "ns")
    for name, steps in (("SEND", send[2:6]), ("WRITE", write)):
        made, posted, delivered, polled = steps
        table.add(f"{name}: made, posted, polled", made + posted + polled, "all below included")
        table.add(f"{name}: its SendWR and SGE made", made)
        table.add(f"{name}: posted", posted)
        table.add(f"{name}: polled", polled)
        table.add(f"{name}: taken by the peer", delivered)
    table.add("receive: made, posted, polled", send[0] + send[1] + send[6], "without the message's arrival")
    return table


def _timed(runs: int, *steps: Callable[[Any], object]) -> list[float]:
    """
    @param steps: called one after the other, each with the result of the one before.
    @return: ns of each.
    """
    found = []
    for _ in range(runs * MORE):
        totals = [0] * len(steps)
        for _ in range(REQUESTS):
            result: object = None
            for index, step in enumerate(steps):
                begun = perf_counter_ns()
                result = step(result)
                totals[index] += perf_counter_ns() - begun
        found.append(totals)
    clock = clockNanoseconds(runs)
    return [min(each) / REQUESTS - clock for each in zip(*found, strict=True)]
