"""
Requests that nearly look like all others: a SEND or WRITE of one short piece of memory is posted in a way of
its own.
"""

from __future__ import annotations

import errno
from typing import Any

from tests.verbs.pyverbs.pair import End, VerbsTestCase, connected
from twisted_ib.hca.services.operations.message import PULL_LEAST
from twisted_ib.verbs.pyverbs import MW, SGE, MWBindInfo, PyverbsUserError, QPCap, SendWR, enums

#: Lengths around the longest of a short piece.
LENGTHS = PULL_LEAST - 1, PULL_LEAST, 8 * PULL_LEAST + 1


class PlainTests(VerbsTestCase):
    """
    Each has what it asks for.
    """

    def sent(self, a: End, b: End, request: SendWR) -> Any:
        """
        @return: the completion of what comes of a request, which succeeds.
        """
        b.receive()
        a.qp.post_send(request)
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_SUCCESS)
        return self.wait(b.cq)[0]

    def test_changed(self) -> None:
        """
        The element, or their number, is another one when the request is posted.
        """
        a, b = connected(self)
        request = a.send(length=10)
        request.sg_list[0].length = 7
        self.assertEqual(self.sent(a, b, request).byte_len, 7)
        request = a.send(length=10)
        request.num_sge = 0
        self.assertEqual(self.sent(a, b, request).byte_len, 0)
        request = SendWR(num_sge=2, sg=[a.sge(0, 10), a.sge(10, 20)])
        self.assertEqual(self.sent(a, b, request).byte_len, 30)

    def test_empty(self) -> None:
        """
        An element without octets needs no memory.
        """
        a, b = connected(self)
        self.assertEqual(self.sent(a, b, SendWR(num_sge=1, sg=[SGE(5, 0, 6)])).byte_len, 0)

    def test_lengths(self) -> None:
        """
        A longer piece arrives as a short one does.
        """
        a, b = connected(self, size=LENGTHS[-1])
        for length in LENGTHS:
            content = length.to_bytes(4, "big") * (length // 4)
            a.mr.write(content, len(content))
            b.receive(length=length)
            a.qp.post_send(a.send(length=length))
            self.assertEqual([each.byte_len for each in self.wait(b.cq)], [length])
            self.wait(a.cq)
            self.assertEqual(b.mr.read(len(content), 0), content)

    def test_targets(self) -> None:
        """
        A SEND with a target for a WRITE is a SEND, a WRITE with that of an atomic a WRITE, and one without
        any is refused by the peer.
        """
        a, b = connected(self)
        request = a.send(length=10)
        request.set_wr_rdma(1, 2)
        self.assertEqual(self.sent(a, b, request).byte_len, 10)
        request = a.send(length=10, opcode=enums.IBV_WR_RDMA_WRITE)
        a.mr.write(b"0123456789", 10)
        request.set_wr_atomic(b.mr.rkey, b.mr.buf + 64, 3, 4)
        a.qp.post_send(request)
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_SUCCESS)
        self.assertEqual(b.mr.read(10, 64), b"0123456789")
        a.qp.post_send(a.send(length=10, opcode=enums.IBV_WR_RDMA_WRITE))
        self.assertEqual(self.wait(a.cq)[0].status, enums.IBV_WC_REM_ACCESS_ERR)

    def test_bind(self) -> None:
        """
        A window that is closed is refused, whatever the operation.
        """
        a, _ = connected(self)
        window = MW(a.pd, enums.IBV_MW_TYPE_2)
        request = a.send()
        request.set_bind_wr(window, MWBindInfo(a.mr, a.mr.buf, 8, 0))
        window.close()
        self.assertRaises(PyverbsUserError, a.qp.post_send, request)

    def test_withoutElements(self) -> None:
        """
        A queue without elements has none for it.
        """
        a, _ = connected(self, cap=QPCap(4, 4, 0, 1, 0))
        self.refused(errno.EINVAL, a.qp.post_send, a.send())

    def test_unreliable(self) -> None:
        """
        An unreliable connection takes both, and none without a target.
        """
        a, b = connected(self, enums.IBV_QPT_UC)
        a.mr.write(b"written", 7)
        write = a.send(length=7, opcode=enums.IBV_WR_RDMA_WRITE)
        write.set_wr_rdma(b.mr.rkey, b.mr.buf + 64)
        a.qp.post_send(write)
        self.wait(a.cq)
        self.assertEqual(self.sent(a, b, a.send(length=7)).byte_len, 7)
        self.assertEqual(b.mr.read(7, 64), b"written")


class LoopbackPlainTests(PlainTests):
    """
    The same without rings.
    """

    device = "lo0"
