"""
Memory of verbs: regions, windows, scatter/gather elements, and memory by address.
"""

from __future__ import annotations

import ctypes
import errno
import mmap as standard
from typing import Any

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given, settings
from tests.verbs.pyverbs.pair import ALL_RIGHTS, End, VerbsTestCase, connected
from twisted_ib import limits
from twisted_ib.verbs.pyverbs import (
    MR,
    MW,
    PD,
    SGE,
    Buf,
    BufMR,
    DmaBuf,
    DmaBufMR,
    DMAHandle,
    DmaHandleInitAttr,
    MREx,
    MWBind,
    MWBindInfo,
    PyverbsRDMAError,
    PyverbsUserError,
    SendWR,
    enums,
    free,
    inc_rkey,
    madvise,
    malloc,
    mmap,
    munmap,
    mwtype2str,
    posix_memalign,
)
from twisted_ib.verbs.pyverbs.base import mem_alloc

LOCAL = int(enums.IBV_ACCESS_LOCAL_WRITE)
WRITABLE = LOCAL | int(enums.IBV_ACCESS_REMOTE_WRITE)


class RegionTests(VerbsTestCase):
    """
    Memory regions.
    """

    def setUp(self) -> None:
        """
        A domain.
        """
        super().setUp()
        self.pd = PD(self.open())

    def test_readAndWrite(self) -> None:
        """
        New memory is zeros; what is written is read; text is UTF-8.
        """
        mr = MR(self.pd, 100, 0)
        self.assertEqual(mr.read(100, 0), bytes(100))
        mr.write("aß", 3, 10)
        mr.write(b"longer", 2, 50)
        mr.write(memoryview(b"12"), 2)
        self.assertEqual(mr.read(4, 10), b"a\xc3\x9f\0")
        self.assertEqual(mr.read(length=4, offset=50), b"lo\0\0")
        self.assertEqual(mr.read(2, 0), b"12")

    def test_bounds(self) -> None:
        """
        A range outside of the region is a C{PyverbsUserError}, as is too little data to write.
        """
        mr = MR(self.pd, 100, LOCAL)
        for length, offset in ((101, 0), (1, 100), (50, 51), (-1, 0), (1, -1), (1 << 70, 0), (0, 101)):
            self.assertRaises(PyverbsUserError, mr.read, length, offset)
            self.assertRaises(PyverbsUserError, mr.write, b"x" * 200, length, offset)
        self.assertRaises(PyverbsUserError, mr.write, b"x", 2)
        self.assertEqual(mr.read(100, 0), bytes(100))
        mr.close()
        self.assertRaises(PyverbsUserError, mr.read, 0, 0)
        self.assertRaises(PyverbsUserError, mr.write, b"", 0)

    def test_names(self) -> None:
        """
        The address is random, no pointer, and the two keys are one.
        """
        a, b = MR(self.pd, 100, LOCAL), MR(self.pd, 100, LOCAL)
        self.assertNotEqual(a.buf, b.buf)
        self.assertEqual(a.buf % 4096, 0)
        self.assertEqual(a.lkey, a.rkey)
        self.assertNotEqual(a.lkey >> 8, b.lkey >> 8)
        self.assertEqual(a.length, 100)
        self.assertNotEqual(a.handle, b.handle)
        self.assertIn(str(a.lkey), str(a))

    def test_empty(self) -> None:
        """
        A region of nothing covers no page: EINVAL; within a page it does.
        """
        self.refused(errno.EINVAL, MR, self.pd)
        self.refused(errno.EINVAL, MREx, self.pd)
        other = MR(self.pd, standard.PAGESIZE)
        mr = MR(self.pd, 0, 0, other.buf + 8)
        self.assertEqual((mr.buf, mr.length), (other.buf + 8, 0))
        self.assertEqual(mr.read(0, 0), b"")
        self.assertRaises(PyverbsUserError, mr.read, 1, 0)

    def test_wrong(self) -> None:
        """
        Rights that cannot be are EINVAL, those of other devices EOPNOTSUPP.
        """
        for access in (enums.IBV_ACCESS_REMOTE_WRITE, enums.IBV_ACCESS_REMOTE_ATOMIC, 1 << 15):
            error = self.refused(errno.EINVAL, MR, self.pd, 10, access)
            self.assertTrue(str(error).startswith("Failed to register a MR"))
            error = self.refused(errno.EINVAL, MREx, self.pd, 10, access)
            self.assertTrue(str(error).startswith("Failed to register MR using extended API"))
        for access in (enums.IBV_ACCESS_ON_DEMAND, enums.IBV_ACCESS_FLUSH_GLOBAL):
            self.refused(errno.EOPNOTSUPP, MR, self.pd, 10, access)
        self.refused(errno.EOPNOTSUPP, MR, self.pd, implicit=True)
        self.refused(errno.EOPNOTSUPP, MR, self.pd, handle=7)
        self.refused(errno.EOPNOTSUPP, MREx, self.pd, 10, LOCAL, fd=0)
        self.refused(errno.EINVAL, MR, self.pd, -1)
        self.assertRaises(PyverbsUserError, MR, None, 10)
        self.assertRaises(TypeError, MR, self.pd, "10", 1)
        self.assertRaises(TypeError, MR, self.pd, 10, "1")
        self.patch(limits, "MEMORY_REGIONS", 0)
        self.refused(errno.ENOMEM, MR, self.pd, 10)
        self.assertEqual(self.pd._device.memory.regions, {})

    def test_relaxed(self) -> None:
        """
        Hints are taken.
        """
        MR(self.pd, 10, LOCAL | enums.IBV_ACCESS_RELAXED_ORDERING | enums.IBV_ACCESS_HUGETLB)

    def test_ofProcess(self) -> None:
        """
        Memory of the process is registered under its address, and is the same memory.
        """
        memory = ctypes.create_string_buffer(b"hello", 100)
        address = ctypes.addressof(memory)
        mr = MR(self.pd, 100, LOCAL, address)
        self.assertEqual(mr.buf, address)
        self.assertEqual(mr.read(5, 0), b"hello")
        mr.write("J", 1)
        self.assertEqual(memory.value, b"Jello")
        mr.close()
        self.assertEqual(memory.value, b"Jello")

    def test_notOfProcess(self) -> None:
        """
        Memory that is not mapped, or not writable, is EFAULT, not a crash.
        """
        self.refused(errno.EFAULT, MR, self.pd, 100, 0, 0x1000)
        size = 3 * standard.PAGESIZE
        address = mmap(length=size)
        self.addCleanup(munmap, address, size)
        munmap(address + standard.PAGESIZE, standard.PAGESIZE)
        self.refused(errno.EFAULT, MR, self.pd, size, 0, address)
        MR(self.pd, standard.PAGESIZE, 0, address).close()
        readOnly = mmap(length=10, prot=mem_alloc.PROT_READ_)
        self.addCleanup(munmap, readOnly, 10)
        self.refused(errno.EFAULT, MR, self.pd, 10, LOCAL, readOnly)
        self.assertEqual(MR(self.pd, 10, 0, readOnly).read(10, 0), bytes(10))

    def test_iova(self) -> None:
        """
        An extended region may have another address for keys, with memory of its own or not.
        """
        memory = ctypes.create_string_buffer(b"hello", 100)
        near = MREx(self.pd, 100, LOCAL, ctypes.addressof(memory), iova=0x10000)
        self.assertEqual(near.buf, ctypes.addressof(memory))
        self.assertEqual(SGE(0x10001, 4, near.lkey).read(3, 1), b"llo")
        own = MREx(self.pd, 100, LOCAL, iova=0x5000)
        self.assertEqual(own.buf, 0x5000)
        self.assertIn("MREx:", str(own))

    def test_elementRead(self) -> None:
        """
        An element reads what its key and address name, from any device of the process.
        """
        mr = MR(self.pd, 100, LOCAL)
        mr.write("abcdef", 6, 10)
        sge = SGE(mr.buf + 10, 6, mr.lkey)
        self.assertEqual(sge.read(3, 2), b"cde")
        for length, offset in ((91, 0), (1, 90), (1, -11), (-1, 0)):
            self.assertRaises(PyverbsUserError, sge.read, length, offset)
        self.assertRaises(PyverbsUserError, SGE(mr.buf, 6, mr.lkey ^ 0x100).read, 1, 0)

    def test_hardware(self) -> None:
        """
        Memory of other kinds is not supported.
        """
        for kind in (Buf, BufMR, DMAHandle, DmaBuf, DmaBufMR):
            self.refused(errno.EOPNOTSUPP, kind, self.pd, 10)
        self.assertIn("cpu_id", str(DmaHandleInitAttr(cpu_id=3)))


class ReregisterTests(VerbsTestCase):
    """
    Regions that change.
    """

    def setUp(self) -> None:
        """
        A region.
        """
        super().setUp()
        self.pd = PD(self.open())
        self.mr = MR(self.pd, 100, LOCAL)

    def test_access(self) -> None:
        """
        New rights leave the keys and the bytes.
        """
        key = self.mr.rkey
        self.mr.write("kept", 4)
        self.mr.rereg(enums.IBV_REREG_MR_CHANGE_ACCESS, access=WRITABLE)
        self.assertEqual(self.mr.rkey, key)
        self.assertEqual(self.mr.read(4, 0), b"kept")
        self.assertEqual(self.mr._core.access, WRITABLE)

    def test_domain(self) -> None:
        """
        A region in another domain is closed with that.
        """
        other = PD(self.pd.ctx)
        self.mr.rereg(enums.IBV_REREG_MR_CHANGE_PD, pd=other)
        self.pd.close()
        self.assertEqual(self.mr.length, 100)
        other.close()
        self.assertRaises(PyverbsUserError, lambda: self.mr.length)

    def test_memory(self) -> None:
        """
        Other memory has its address, its length and another key.
        """
        address = posix_memalign(50)
        self.addCleanup(free, address)
        key = self.mr.lkey
        self.mr.rereg(enums.IBV_REREG_MR_CHANGE_TRANSLATION, addr=address, length=50)
        self.assertEqual((self.mr.buf, self.mr.length), (address, 50))
        self.assertNotEqual(self.mr.lkey, key)
        self.mr.write("there", 5)
        self.assertEqual(mem_alloc.read(address, 5), b"there")
        self.mr.close()

    def test_wrong(self) -> None:
        """
        An invalid change has no effect.
        """
        call = self.mr.rereg
        self.refused(errno.EINVAL, call, 0)
        self.refused(errno.EINVAL, call, 8)
        self.refused(errno.EINVAL, call, enums.IBV_REREG_MR_CHANGE_ACCESS, access=2)
        demanded = enums.IBV_ACCESS_ON_DEMAND
        self.refused(errno.EOPNOTSUPP, call, enums.IBV_REREG_MR_CHANGE_ACCESS, access=demanded)
        self.refused(errno.EINVAL, call, enums.IBV_REREG_MR_CHANGE_TRANSLATION)
        self.refused(errno.EFAULT, call, enums.IBV_REREG_MR_CHANGE_TRANSLATION, addr=0x1000, length=5)
        self.assertRaises(TypeError, call, enums.IBV_REREG_MR_CHANGE_PD)
        self.assertEqual((self.mr.length, self.mr._core.access), (100, LOCAL))


class WindowTests(VerbsTestCase):
    """
    Memory windows, from the program's side.
    """

    def setUp(self) -> None:
        """
        Two ends.
        """
        super().setUp()
        self.near, self.far = connected(self)

    def status(self, rkey: int, address: int) -> int:
        """
        @return: how a WRITE of 8 octets ends.
        """
        wr = SendWR(opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=[self.near.sge(length=8)])
        wr.set_wr_rdma(rkey, address)
        self.near.qp.post_send(wr)
        status: int = self.wait(self.near.cq)[0].status
        return status

    def bind(self, mw: MW, length: int, access: int = int(enums.IBV_ACCESS_REMOTE_WRITE)) -> int:
        """
        Bind a window of type 1.

        @return: how that ended.
        """
        info = MWBindInfo(self.far.mr, self.far.mr.buf + 16, length, access)
        self.far.qp.bind_mw(mw, MWBind(info, enums.IBV_SEND_SIGNALED, 5))
        (wc,) = self.wait(self.far.cq)
        self.assertEqual(wc.wr_id, 5)
        status: int = wc.status
        return status

    def test_type1(self) -> None:
        """
        Each bind gives another rkey, known at once; a length of 0 closes the window.
        """
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_1)
        self.assertEqual(mw.type, enums.IBV_MW_TYPE_1)
        keys = [mw.rkey]
        info = MWBindInfo(self.far.mr, self.far.mr.buf + 16, 8, enums.IBV_ACCESS_REMOTE_WRITE)
        self.far.qp.bind_mw(mw, MWBind(info, enums.IBV_SEND_SIGNALED))
        keys.append(mw.rkey)
        self.wait(self.far.cq)
        self.assertEqual(mw.rkey, keys[-1])
        self.near.mr.write("windowed", 8)
        self.assertEqual(self.status(mw.rkey, self.far.mr.buf + 16), enums.IBV_WC_SUCCESS)
        self.assertEqual(self.far.mr.read(8, 16), b"windowed")
        self.assertEqual(self.bind(mw, 0), enums.IBV_WC_SUCCESS)
        keys.append(mw.rkey)
        self.assertEqual(len(set(keys)), 3)
        self.assertEqual(self.status(keys[1], self.far.mr.buf + 16), enums.IBV_WC_REM_ACCESS_ERR)

    def test_type1Fails(self) -> None:
        """
        A bind that cannot be ends badly, and the window keeps its rkey.
        """
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_1)
        key = mw.rkey
        self.assertEqual(self.bind(mw, 1 << 20), enums.IBV_WC_MW_BIND_ERR)
        self.assertEqual(mw.rkey, key)

    def test_type1NotPosted(self) -> None:
        """
        A bind that cannot be posted promises nothing.
        """
        fresh = End(self, pd=self.far.pd)
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_1)
        key = mw.rkey
        info = MWBindInfo(self.far.mr, self.far.mr.buf, 8, 0)
        self.refused(errno.EINVAL, fresh.qp.bind_mw, mw, MWBind(info, 0))
        self.assertEqual((mw.rkey, mw._core.reservedKeys), (key, set()))

    def test_type2(self) -> None:
        """
        A window of type 2 is bound and invalidated by requests.
        """
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_2)
        wr = SendWR(opcode=enums.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, MWBindInfo(self.far.mr, self.far.mr.buf, 64, WRITABLE))
        self.assertEqual(wr.rkey, inc_rkey(mw.rkey))
        self.far.qp.post_send(wr)
        self.assertEqual(self.wait(self.far.cq)[0].opcode, enums.IBV_WC_BIND_MW)
        self.assertEqual(mw.rkey, wr.rkey)
        self.assertEqual(self.status(mw.rkey, self.far.mr.buf), enums.IBV_WC_SUCCESS)
        invalidate = SendWR(opcode=enums.IBV_WR_LOCAL_INV, imm_data=mw.rkey)
        self.far.qp.post_send(invalidate)
        self.assertEqual(self.wait(self.far.cq)[0].opcode, enums.IBV_WC_LOCAL_INV)
        self.assertEqual(self.status(mw.rkey, self.far.mr.buf), enums.IBV_WC_REM_ACCESS_ERR)

    def test_type2ByPeer(self) -> None:
        """
        SEND with invalidate closes the peer's window, and the completion has its rkey.
        """
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_2)
        wr = SendWR(opcode=enums.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, MWBindInfo(self.far.mr, self.far.mr.buf, 64, WRITABLE))
        self.far.qp.post_send(wr)
        self.wait(self.far.cq)
        self.far.receive()
        self.near.qp.post_send(SendWR(opcode=enums.IBV_WR_SEND_WITH_INV, imm_data=mw.rkey))
        self.wait(self.near.cq)
        (wc,) = self.wait(self.far.cq)
        self.assertEqual(wc.wc_flags, enums.IBV_WC_WITH_INV)
        self.assertEqual(wc.imm_data, mw.rkey)
        self.assertEqual(self.status(mw.rkey, self.far.mr.buf), enums.IBV_WC_REM_ACCESS_ERR)

    def test_wrong(self) -> None:
        """
        There are two types, and type 2 is not bound by a call.
        """
        self.refused(errno.EINVAL, MW, self.far.pd, 3)
        mw = MW(self.far.pd, enums.IBV_MW_TYPE_2)
        info = MWBindInfo(self.far.mr, self.far.mr.buf, 8, 0)
        self.refused(errno.EINVAL, self.far.qp.bind_mw, mw, MWBind(info, 0))
        self.patch(limits, "MEMORY_WINDOWS", 1)
        self.refused(errno.ENOMEM, MW, self.far.pd, 1)
        self.assertIn("IBV_MW_TYPE_2", str(mw))
        self.assertEqual(mwtype2str(9), "Unknown MW type (9)")


class AllocationTests(SynchronousTestCase):
    """
    Memory by address.
    """

    def test_allocate(self) -> None:
        """
        Allocated memory is aligned, all zeros, and can be read and written.
        """
        address = posix_memalign(100, 64)
        self.addCleanup(free, address)
        self.assertEqual(address % 64, 0)
        self.assertEqual(mem_alloc.read(address, 100), bytes(100))
        mem_alloc.write(address, "text", 4, 10)
        self.assertEqual(mem_alloc.read(address, 4, 10), b"text")
        self.assertRaises(PyverbsUserError, mem_alloc.write, address, b"x", 2)
        free(malloc(10))

    def test_numbers(self) -> None:
        """
        Numbers are written with the big end first, and read as this machine has them; offsets
        count numbers.
        """
        address = posix_memalign(32)
        self.addCleanup(free, address)
        mem_alloc.writebe32(address, 0x01020304, 1)
        mem_alloc.writebe64(address, 0x05060708090A0B0C, 1)
        self.assertEqual(mem_alloc.read(address, 16), bytes([0, 0, 0, 0, *range(1, 13)]))
        self.assertEqual(mem_alloc.read32(address, 1).to_bytes(4, "little"), b"\1\2\3\4")
        self.assertEqual(mem_alloc.read64(address, 1).to_bytes(8, "little"), bytes(range(5, 13)))

    def test_map(self) -> None:
        """
        Memory is mapped and unmapped, and the kernel takes advice or not.
        """
        address = mmap(length=standard.PAGESIZE)
        mem_alloc.write(address, b"gone", 4)
        madvise(address, standard.PAGESIZE)
        self.assertEqual(mem_alloc.read(address, 4), bytes(4))
        munmap(address, standard.PAGESIZE)
        error = self.assertRaises(PyverbsRDMAError, madvise, address, standard.PAGESIZE, 12345)
        self.assertEqual(error.error_code, errno.EINVAL)
        self.assertRaises(MemoryError, munmap, 1, 1)
        self.assertRaises(MemoryError, mmap, 0, 0)
        self.assertRaises(MemoryError, posix_memalign, 10, 3)

    def test_constants(self) -> None:
        """
        The flags are the system's.
        """
        for name in ("MAP_PRIVATE", "MAP_SHARED", "MAP_ANONYMOUS", "PROT_READ", "PROT_WRITE", "PROT_EXEC"):
            self.assertEqual(getattr(mem_alloc, name + "_"), getattr(standard, name))


class AnyAccess(VerbsTestCase):
    """
    Property tests.
    """

    def test_anyPlace(self) -> None:
        """
        Each read or write concerns the region's own bytes, or is a C{PyverbsUserError}.
        """
        mr = MR(PD(self.open()), 100, ALL_RIGHTS)
        model = bytearray(100)

        @settings(max_examples=100, deadline=None)
        @given(st.integers(-5, 110), st.integers(-5, 110), st.binary(max_size=110))
        def check(length: int, offset: int, data: bytes) -> None:
            inside = length >= 0 and offset >= 0 and offset + length <= 100
            calls: list[Any] = [lambda: mr.read(length, offset)]
            if not inside or len(data) < length:
                calls.append(lambda: mr.write(data, length, offset))
            else:
                mr.write(data, length, offset)
                model[offset : offset + length] = data[:length]
            if not inside:
                for call in calls:
                    self.assertRaises(PyverbsUserError, call)
            else:
                self.assertEqual(mr.read(length, offset), model[offset : offset + length])
            self.assertEqual(mr.read(100, 0), model)

        check()
