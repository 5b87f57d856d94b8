"""
Tests for what an HCA counts.
"""

from __future__ import annotations

from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.device.counters import RXE_COUNTERS, Traffic, counters

#: As in C{/sys/class/infiniband/rxe0/ports/1/hw_counters}, Linux 6.12.
NAMES = (
    "sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err"
    " ack_deferred retry_exceeded_err retry_rnr_exceeded_err completer_retry_err send_err link_downed"
    " rdma_sends rdma_recvs"
).split()


class CounterTests(SynchronousTestCase):
    """
    The counters by name.
    """

    def test_names(self) -> None:
        """
        rxe's names come first, in its order, all 0 at the beginning.
        """
        self.assertEqual(list(RXE_COUNTERS), NAMES)
        self.assertEqual(list(counters(Traffic(), {}, {}).items()), [(name, 0) for name in NAMES])

    def test_own(self) -> None:
        """
        Counters that rxe does not have follow under their own names, sorted; the communication manager's
        begin with C{cm_}.
        """
        found = counters(Traffic(), {"zeta": 2, "alpha": 1}, {"repeatedREQ": 3, "unknownID": 4})
        self.assertEqual(
            list(found.items())[len(NAMES) :],
            [("alpha", 1), ("cm_repeated_req", 3), ("cm_unknown_id", 4), ("zeta", 2)],
        )

    def test_same(self) -> None:
        """
        An event of ours that is one of rxe's counts there too; one that is counted under rxe's
        name does not come twice.
        """
        found = counters(
            Traffic(),
            {"management_sent": 2, "management_received": 3, "management_dropped": 4, "rcvd_rnr_err": 5}
            | {"send_err": 6},
            {},
        )
        self.assertEqual((found["sent_pkts"], found["management_sent"]), (2, 2))
        self.assertEqual((found["rcvd_pkts"], found["management_received"]), (3, 3))
        self.assertEqual((found["send_err"], found["rcvd_rnr_err"]), (10, 5))
        self.assertEqual(list(found).count("rcvd_rnr_err"), 1)
        self.assertEqual(list(found)[: len(NAMES)], NAMES)

    def test_traffic(self) -> None:
        """
        Work queues report for their queue pair, or else its consumer does; a consumer that cannot is left
        out.  Reading changes nothing.
        """
        asked = SimpleNamespace(traffic=lambda: (8, 4, 2, 1))
        never = SimpleNamespace(traffic=None)
        gone = Traffic()
        gone.add(SimpleNamespace(work=asked, consumer=never))
        live = [
            SimpleNamespace(work=None, consumer=asked),
            SimpleNamespace(work=None, consumer=SimpleNamespace()),
        ]
        for _ in range(2):
            found = counters(gone.with_(live), {}, {})
            names = ("sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs")
            self.assertEqual([found[name] for name in names], [16, 8, 4, 2])
