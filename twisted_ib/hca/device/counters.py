"""
The counters of an HCA, under the names of Linux rxe's C{hw_counters} and under its own.

The data path counts nothing: queue pairs report their sequence numbers on request.  Rare events are counted
where they happen (L{Device.count<twisted_ib.hca.device.device.Device.count>}), polling and sleeping by the
reactor (L{twisted_ib.hca.base.polling}).

A record on a fabric of operations is what a packet is to rxe.  A fabric of packets counts packets, and its
connections count by rxe's names (L{twisted_ib.hca.transport}).

Source: Linux 6.12 C{drivers/infiniband/sw/rxe/rxe_hw_counters.c}, C{rxe_hw_counters.h}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: rxe's names in the order of C{rxe_hw_counters.c}, each with our events that mean the same; an event may
#: count for two names.  On fabrics of operations a name without events stays 0:
#: C{duplicate_request}, C{out_of_seq_request}, C{rcvd_seq_err}: the medium neither loses nor repeats records,
#: so there are no sequence numbers;
#: C{ack_deferred}: the reader's position in the medium is the acknowledgement;
#: C{link_downed}: the port is always up.
#: C{sent_pkts}, C{rcvd_pkts}, C{rdma_sends} and C{rdma_recvs} come from L{Traffic}.
RXE_COUNTERS: dict[str, tuple[str, ...]] = {
    "sent_pkts": ("management_sent",),
    "rcvd_pkts": ("management_received",),
    "duplicate_request": (),
    "out_of_seq_request": (),
    "rcvd_rnr_err": (),
    "send_rnr_err": (),
    "rcvd_seq_err": (),
    "ack_deferred": (),
    "retry_exceeded_err": (),
    "retry_rnr_exceeded_err": (),
    "completer_retry_err": (),
    "send_err": ("management_dropped", "packets_unsendable"),
    "link_downed": (),
    "rdma_sends": (),
    "rdma_recvs": (),
}


class Traffic:
    """
    The records and messages that queue pairs have moved.
    """

    __slots__ = ("messagesReceived", "messagesSent", "recordsReceived", "recordsSent")

    def __init__(self) -> None:
        #: Records that the medium has accepted, including repeated ones.
        self.recordsSent = 0
        #: Records consumed from the medium.
        self.recordsReceived = 0
        #: Requests that were sent.
        self.messagesSent = 0
        #: Requests of peers that were executed.
        self.messagesReceived = 0

    def add(self, queuePair: Any) -> None:
        """
        Add what a queue pair has moved since it was created, if that is known.

        @param queuePair: its work queues, or else its consumer, have C{traffic()}: the four numbers in the
            order of the attributes above.  They never decrease.
        """
        # Whichever object owns the data path keeps sequence numbers anyway (IBTA vol. 1 9.7.1), so asking it
        # costs nothing per message.
        traffic = getattr(queuePair.work or queuePair.consumer, "traffic", None)
        if traffic is not None:
            recordsSent, recordsReceived, messagesSent, messagesReceived = traffic()
            self.recordsSent += recordsSent
            self.recordsReceived += recordsReceived
            self.messagesSent += messagesSent
            self.messagesReceived += messagesReceived

    def with_(self, queuePairs: Iterable[Any]) -> Traffic:
        """
        Return the sum of this and the traffic of queue pairs that are not in here yet.
        """
        total = Traffic()
        for name in Traffic.__slots__:
            setattr(total, name, getattr(self, name))
        for queuePair in queuePairs:
            total.add(queuePair)
        return total


def counters(
    traffic: Traffic, events: Mapping[str, int], managementEvents: Mapping[str, int]
) -> dict[str, int]:
    """
    All counters of an HCA since it was opened.

    @param events: its own counters, and those of rxe's names that are counted where they happen.
    @param managementEvents: the counters of its communication manager.
    @return: rxe's names in rxe's order, then ours, sorted; those of the communication manager begin with
        C{cm_}.
    """
    # Linux 6.12 rxe_hw_counters.c fixes names and order; monitoring tools read them by name.
    found = {
        name: events.get(name, 0) + sum(events.get(event, 0) for event in same)
        for name, same in RXE_COUNTERS.items()
    }
    found["sent_pkts"] += traffic.recordsSent
    found["rcvd_pkts"] += traffic.recordsReceived
    found["rdma_sends"] += traffic.messagesSent
    found["rdma_recvs"] += traffic.messagesReceived
    own = {name: count for name, count in events.items() if name not in RXE_COUNTERS}
    own.update({f"cm_{_underscored(name)}": count for name, count in managementEvents.items()})
    found.update(sorted(own.items()))
    return found


def _underscored(name: str) -> str:
    spelt = ""
    for before, letter in zip(" " + name, name, strict=False):
        spelt += "_" if letter.isupper() and before.islower() else ""
        spelt += letter.lower()
    return spelt
