"""
Device memory and its regions.
"""

from __future__ import annotations

import errno

from tests.verbs.pyverbs.pair import End, VerbsTestCase, connected
from twisted_ib.hca.base.traits import DEVICE_MEMORY as MOST
from twisted_ib.verbs.pyverbs import (
    DM,
    DMMR,
    PD,
    SGE,
    AllocDmAttr,
    PyverbsRDMAError,
    PyverbsUserError,
    SendWR,
    enums,
)

LOCAL = int(enums.IBV_ACCESS_ZERO_BASED | enums.IBV_ACCESS_LOCAL_WRITE)
WRITABLE = LOCAL | int(enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_READ)


class DeviceMemoryTests(VerbsTestCase):
    """
    The memory.
    """

    def test_allocation(self) -> None:
        """
        A length, an alignment and reserved bits are checked, in the device's words.
        """
        ctx = self.open()
        self.assertEqual(ctx.query_device_ex().max_dm_size, MOST)
        for wrong in ((0,), (MOST + 1,), (-4,), (8, 13), (8, -1), (8, 1 << 31), (8, 0, 1)):
            error = self.refused(errno.EINVAL, DM, ctx, AllocDmAttr(*wrong))
            self.assertIn(f"Failed to allocate device memory of size {wrong[0]}. Max", str(error))
        self.assertRaises(TypeError, DM, ctx)
        self.refused(errno.EOPNOTSUPP, DM, ctx, handle=1)
        with DM(ctx, AllocDmAttr(8, 12)) as dm:
            self.assertEqual(dm.copy_from_dm(0, 8), bytes(8))
            self.refused(errno.EOPNOTSUPP, dm.export_dmabuf_fd)
        dm.close()
        self.assertRaises(PyverbsUserError, dm.copy_from_dm, 0, 8)

    def test_room(self) -> None:
        """
        All contexts of a device have so much together, and what is freed or dropped is there again.
        """
        ctx, other = self.open(), self.open()
        for _ in range(2):
            dm = DM(ctx, AllocDmAttr(MOST - 4))
            with DM(other, AllocDmAttr(4)):
                self.refused(errno.ENOMEM, DM, ctx, AllocDmAttr(1))
            del dm
        DM(other, AllocDmAttr(MOST)).close()

    def test_copies(self) -> None:
        """
        A copy has multiples of 4 octets, within the memory and the data.
        """
        dm = DM(self.open(), AllocDmAttr(100))
        dm.copy_to_dm(8, b"abcdefgh", 8)
        self.assertEqual(dm.copy_from_dm(4, 16), b"\0\0\0\0abcdefgh\0\0\0\0")
        self.refused(errno.EINVAL, dm.copy_to_dm, 0, b"abc", 4)
        for offset, length in ((1, 4), (4, 1), (104, 4), (0, 104), (-4, 8), (4, -4)):
            self.refused(errno.EINVAL, dm.copy_from_dm, offset, length)
            self.refused(errno.EINVAL, dm.copy_to_dm, offset, bytes(200), length)


class RegionTests(VerbsTestCase):
    """
    Its regions.
    """

    def test_registration(self) -> None:
        """
        A region is zero based and within the memory; it goes with its memory and its domain.
        """
        ctx = self.open()
        pd, dm = PD(ctx), DM(ctx, AllocDmAttr(100))
        for length, access, offset in ((104, LOCAL, 0), (100, LOCAL, 4), (4, LOCAL, -4), (4, 1, 0)):
            error = self.refused(errno.EINVAL, DMMR, pd, length, access, dm, offset)
            self.assertIn("Failed to register a device MR", str(error))
        mr = DMMR(pd, 12, LOCAL, dm, 4)
        self.assertEqual((mr.buf, mr.length, mr.lkey), (0, 12, mr.rkey))
        mr.write("abcd", 4, 4)
        self.assertEqual((mr.read(4, 4), dm.copy_from_dm(4, 4)), (b"abcd", b"abcd"))
        for offset, length in ((2, 4), (4, 2), (104, 4)):
            self.assertRaises(PyverbsRDMAError, mr.read, length, offset)
            self.assertRaises(PyverbsRDMAError, mr.write, "a" * length, length, offset)
        dm.close()
        self.assertRaises(PyverbsUserError, lambda: mr.lkey)
        with self.open() as other, PD(other) as foreign, DM(ctx, AllocDmAttr(8)) as dm:
            # One device, as a context of the same name has it.
            DMMR(foreign, 8, LOCAL, dm, 0).close()

    def test_peer(self) -> None:
        """
        A peer writes into it and reads from it, and its owner sends from there, counting from the region's
        first octet; beyond its last one the peer is refused.
        """
        near, far = connected(self)
        dm = DM(far.ctx, AllocDmAttr(64))
        region = DMMR(far.pd, 32, WRITABLE, dm, 16)
        near.mr.write(b"0123456789abcdef", 16)
        self.assertEqual(self.work(near, region, enums.IBV_WR_RDMA_WRITE, 8), enums.IBV_WC_SUCCESS)
        self.assertEqual(dm.copy_from_dm(24, 16), b"0123456789abcdef")
        dm.copy_to_dm(16, b"from the device!", 16)
        self.assertEqual(self.work(near, region, enums.IBV_WR_RDMA_READ, 0), enums.IBV_WC_SUCCESS)
        self.assertEqual(near.mr.read(16, 0), b"from the device!")
        write = SendWR(opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(0, 16, region.lkey)])
        write.set_wr_rdma(near.mr.rkey, near.mr.buf + 100)
        far.qp.post_send(write)
        self.assertEqual(self.wait(far.cq)[0].status, enums.IBV_WC_SUCCESS)
        self.assertEqual(near.mr.read(16, 100), b"from the device!")
        self.assertEqual(self.work(near, region, enums.IBV_WR_RDMA_WRITE, 24), enums.IBV_WC_REM_ACCESS_ERR)

    def test_reregistration(self) -> None:
        """
        No change of a region is possible, and a peer writes into it as before.
        """
        near, far = connected(self)
        dm = DM(far.ctx, AllocDmAttr(64))
        region = DMMR(far.pd, 64, WRITABLE, dm, 0)
        rights = WRITABLE & ~int(enums.IBV_ACCESS_ZERO_BASED)
        for flags in range(1, 8):
            change = flags, far.pd, near.mr.buf, 64, rights
            self.refused(errno.EINVAL, region.rereg, *change)
        self.assertEqual(self.work(near, region, enums.IBV_WR_RDMA_WRITE, 8), enums.IBV_WC_SUCCESS)
        region.close()
        self.assertRaises(PyverbsUserError, region.rereg, 1)

    def work(self, end: End, region: DMMR, opcode: int, at: int) -> int:
        """
        @return: the status of 16 octets' request for a region of the peer's, C{at} octets behind its start.
        """
        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(end.mr.buf, 16, end.mr.lkey)])
        request.set_wr_rdma(region.rkey, at)
        end.qp.post_send(request)
        return self.wait(end.cq)[0].status
