"""
What an HCA counts, under the names of Linux rxe's C{hw_counters} and under its own.

Nothing here counts on the way of a message.  Whoever uses a queue pair has numbers anyway, such
as SDP its sequence numbers, and says them when it is asked; a queue pair that is closed leaves
its own behind.  Events that are rare are counted by name where they happen
(L{Device.count<twisted_ib.hca.device.device.Device.count>}).  How looking and sleeping alternate is
known to whoever decides it, and asked for (C{polling_}, L{twisted_ib.hca.base.polling}; C{sleeps},
C{doorbells_rung}).

A record is to a fabric of operations what a packet is to rxe.  A fabric of packets counts packets,
and its connections count by rxe's names what becomes of them
(L{twisted_ib.hca.transport}).

Source: Linux 6.12 C{drivers/infiniband/sw/rxe/rxe_hw_counters.c}; each name's meaning is where
rxe increments it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: rxe's names, in its order, and the events of ours that are the same; some events count for two
#: names.  A name without events is 0 on fabrics of operations, always:
#:
#:  - C{duplicate_request}, C{out_of_seq_request}, C{rcvd_seq_err}: the medium loses and repeats
#:    nothing, so there are no sequence numbers;
#:  - C{ack_deferred}: how far the peer has read is the acknowledgement;
#:  - C{link_downed}: the port is always up.
#:
#: The first two and the last two are what was moved: see L{Traffic}.
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
    What queue pairs moved.

    @ivar recordsSent: records that were given to the medium, repeated ones too.
    @ivar recordsReceived: records that were taken from it.
    @ivar messagesSent: requests that were sent.
    @ivar messagesReceived: requests of peers that were done.
    """

    __slots__ = ("messagesReceived", "messagesSent", "recordsReceived", "recordsSent")

    def __init__(self) -> None:
        self.recordsSent = self.recordsReceived = 0
        self.messagesSent = self.messagesReceived = 0

    def add(self, queuePair: Any) -> None:
        """
        Add what a queue pair has moved since it was made, if that is known.

        @param queuePair: a queue pair.  What answers for it, its work queues or else its
            consumer, has C{traffic()}: the four numbers in the order of the attributes here
            from C{recordsSent} to C{messagesReceived}.  They never shrink.
        """
        traffic = getattr(queuePair.work or queuePair.consumer, "traffic", None)
        if traffic is not None:
            recordsSent, recordsReceived, messagesSent, messagesReceived = traffic()
            self.recordsSent += recordsSent
            self.recordsReceived += recordsReceived
            self.messagesSent += messagesSent
            self.messagesReceived += messagesReceived

    def with_(self, queuePairs: Iterable[Any]) -> Traffic:
        """
        The sum of this and of what some queue pairs have moved.

        @param queuePairs: those that are not in here yet.
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
    All that an HCA has counted since it was opened.

    @param traffic: what its queue pairs moved.
    @param events: its own counters, and those of rxe's names that are counted where they happen.
    @param managementEvents: those of its communication manager.

    @return: first rxe's names, in its order, then ours, sorted; those of the communication
        manager begin with C{cm_}.
    """
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
    """
    A name as counters are spelt: C{repeatedREQ} is C{repeated_req}.
    """
    spelt = ""
    for before, letter in zip(" " + name, name, strict=False):
        spelt += "_" if letter.isupper() and before.islower() else ""
        spelt += letter.lower()
    return spelt
