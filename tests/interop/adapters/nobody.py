"""
Datagrams of a device to addresses that nobody has, and then one to itself.

C{nobody.py DEVICE OWN-ADDRESS}: says whether the last one came before the kernel could have looked for the
others one after the other, and how many of those it has lost in the end.
"""

from __future__ import annotations

import sys
import time
from ipaddress import IPv6Address

from twisted_ib.verbs.pyverbs import (
    AH,
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

#: How many, the first's last octet, and how long the kernel looks for each, in seconds.
ADDRESSES, FIRST = 40, 100
LOOKUP_SECONDS = 1.0
#: How long all may take, in seconds.
PATIENCE = 60.0
_KEY = 0x11111111


def main(device: str, address: str) -> None:
    """
    Send, and wait.
    """
    context = Context(name=device)
    pd = PD(context)
    cq, mr = CQ(context, 100), MR(pd, 4096, enums.IBV_ACCESS_LOCAL_WRITE)
    qp = QP(pd, QPInitAttr(enums.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(100, 100)))
    ready = QPAttr()
    ready.qkey = _KEY
    qp.to_rts(ready)
    qp.post_recv(RecvWR(1, 1, [SGE(mr.buf, 1000, mr.lkey)]))

    def send(to: str) -> None:
        route = GlobalRoute(IPv6Address(f"::ffff:{to}").exploded)
        with AH(pd, attr=AHAttr(is_global=1, gr=route)) as handle:
            request = SendWR(num_sge=1, sg=[SGE(mr.buf + 2000, 5, mr.lkey)], opcode=enums.IBV_WR_SEND)
            request.set_wr_ud(handle, qp.qp_num, _KEY)
            qp.post_send(request)

    began = time.monotonic()
    for number in range(ADDRESSES):
        send(f"{address.rpartition('.')[0]}.{FIRST + number}")
    send(address)
    counters = context._device.counters
    seconds = 0.0
    while time.monotonic() - began < PATIENCE:
        if cq.poll(1)[0]:
            seconds = time.monotonic() - began
        if seconds and counters["datagrams_unsendable"] == ADDRESSES:
            break
        time.sleep(0.001)
    print("came", 0 < seconds < ADDRESSES * LOOKUP_SECONDS / 2, flush=True)
    print("lost", counters["datagrams_unsendable"], flush=True)
    print(f"{seconds:.2f} s, {time.monotonic() - began:.2f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
