"""
Memory regions and windows.  Source: rdma-core 65, C{pyverbs/mr.pyx}.

C{MR.buf}, a region's address, is random unless the program registers memory of its own (C{address=}).

Device memory: memory of the process that counts as the device's, for programs that want some.

Source: rdma-core 65, C{pyverbs/{device,mr}.pyx} and C{man ibv_alloc_dm(3)}; what is refused is from its
C{providers/mlx5/verbs.c} and Linux C{uverbs_std_types_{dm,mr}.c}.
"""

from __future__ import annotations

import errno
from math import trunc
from mmap import PAGESIZE, mmap
from typing import Any
from weakref import WeakKeyDictionary

from twisted_ib.hca.device.device import Device
from twisted_ib.hca.memory.windows import MemoryWindow
from twisted_ib.verbs.core.hub import locked
from twisted_ib.verbs.pyverbs.base.base import checked, named, table
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.mem_alloc import presence, processMemory
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, closing, invalid, unsupported, verb
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags, ibv_mw_type, ibv_rereg_mr_flags
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.deviceattr import AllocDmAttr
from twisted_ib.verbs.pyverbs.objects.pd import PD

#: Offsets and lengths of copies are its multiples, in octets.
_UNIT = 4
_ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
#: Octets that were allocated of each device.
_taken: WeakKeyDictionary[Device, int] = WeakKeyDictionary()

_A = ibv_access_flags
_LOCAL_WRITE = int(_A.IBV_ACCESS_LOCAL_WRITE)
#: Rights that this HCA does not have: on-demand paging and the FLUSH operation.
_UNSUPPORTED = int(_A.IBV_ACCESS_ON_DEMAND | _A.IBV_ACCESS_FLUSH_GLOBAL | _A.IBV_ACCESS_FLUSH_PERSISTENT)
_R = ibv_rereg_mr_flags
# man ibv_rereg_mr(3): unknown flags are IBV_REREG_MR_ERR_INPUT.
_CHANGES = int(_R.IBV_REREG_MR_CHANGE_TRANSLATION | _R.IBV_REREG_MR_CHANGE_PD | _R.IBV_REREG_MR_CHANGE_ACCESS)
_NEEDS_PD = "Creator of a memory region is a PD or a CMID that has one"


class MR(VerbsObject):
    """
    A memory region.
    """

    rank = 60
    _failed = "Failed to register a MR"

    def __init__(
        self,
        creator: Any,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        """
        Register memory.

        @param creator: a L{PD}, or a CMID that has one; a CMID adds local write access.
        @param length: octets.
        @param access: bits of C{ibv_access_flags}.
        @param address: memory of the process, which must stay mapped; by default new memory, all zeros.
        @param implicit: all memory of the process, which is not supported.
        @raise PyverbsRDMAError: the rights are invalid (EINVAL) or not supported (EOPNOTSUPP), or the memory
            is not mapped or not available (EFAULT, ENOMEM).
        """
        super().__init__()
        if kwargs.get("handle") is not None:
            raise unsupported("Failed to import MR")
        # It needs on-demand paging: the whole address space cannot be pinned.
        if implicit:
            raise unsupported(self._failed)
        self._register(creator, trunc(length), trunc(access), address)

    @verb()
    def _register(
        self, creator: Any, length: int, access: int, address: int | None, iova: int | None = None
    ) -> None:
        pd = creator if isinstance(creator, PD) else getattr(creator, "pd", None)
        if not isinstance(pd, PD):
            raise PyverbsUserError(_NEEDS_PD)
        if pd is not creator:
            # librdmacm/rdma_verbs.h: rdma_reg_msgs, rdma_reg_read and rdma_reg_write all add it.
            access |= _LOCAL_WRITE
        pd._check()
        # Linux core/umem.c, ib_umem_get: it covers a page at least, as one of no octets within a page does.
        within = (address or 0) % PAGESIZE
        check(length > 0 or (not length and within > 0), f"{self._failed}. length: {length}")
        if access & _UNSUPPORTED:
            raise unsupported(f"{self._failed}. length: {length}, access flags: {access}")
        # IBTA vol. 1 10.6.3: remote write and atomic rights need local write; the core checks that.
        device = pd._device
        # Memory of the process is used in place, so that the program sees what peers write.
        if address:
            view = processMemory(address, length, bool(access & _LOCAL_WRITE))
            core = device.memory.register(
                view, access, pd._core, address if iova is None else iova, present=presence(address, length)
            )
        # Not from the shared segment, whose addresses the device chooses.
        elif iova is not None or not length:
            core = device.memory.register(bytearray(length), access, pd._core, iova)
        else:
            core = device.allocateMemory(length, access, pd._core)
        self._core = core
        self._device = device
        # With IBV_ACCESS_ZERO_BASED the keys count from 0, but buf is still where the memory is.
        self._buf = address or (core.address if length else 0)
        self.pd: PD | None = pd
        # Child of the CMID, too: rdma_destroy_id would find its PD busy.
        self._opened(closing(device, device.deregisterMemory, core), creator, pd)

    def _closed(self) -> None:
        self._buf = 0
        self.pd = None

    # -- its memory

    @locked
    def write(self, data: bytes | str, length: int, offset: int = 0) -> None:
        """
        Write into the region, whatever its rights are.

        @param data: at least C{length} octets; a string becomes UTF-8.
        @param length: octets.
        @param offset: in octets.
        @raise PyverbsUserError: C{data} is shorter, or the range is outside of the region.
        """
        raw = data.encode() if isinstance(data, str) else memoryview(data).cast("B")
        view = self._view(length, offset)
        if len(raw) < length:
            raise PyverbsUserError(f"There are not {length} octets to write, but {len(raw)}")
        view[:] = raw[:length]

    @locked
    def read(self, length: int, offset: int) -> bytes:
        """
        @param length: octets.
        @param offset: in octets.
        @return: the octets there.
        @raise PyverbsUserError: the range is outside of the region.
        """
        return bytes(self._view(length, offset))

    def _view(self, length: int, offset: int) -> memoryview:
        # As pyverbs/mr.pyx, whose text this is: a closed region has no memory any more.
        if self._closer is None:
            raise PyverbsUserError(f"The MR buffer isn't allocated or length {length} is invalid")
        view = self._core.view
        if offset < 0:
            raise PyverbsUserError(f"Invalid offset {offset}")
        if length < 0 or offset + length > len(view):
            raise PyverbsUserError(f"{length} octets at offset {offset} are not within the MR of {len(view)}")
        return view[offset : offset + length]

    @verb("Failed to rereg MR")
    def rereg(
        self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0
    ) -> None:
        """
        Change the region.  Its keys stay, unless it gets other memory.

        @param flags: bits of C{ibv_rereg_mr_flags}: which of the other parameters are valid.
        @param addr: memory of the process, C{length} octets.
        @param access: bits of C{ibv_access_flags}.
        @raise PyverbsRDMAError: the change is invalid (EINVAL), or windows are bound to the region (EBUSY);
            it stays as it was.
        """
        self._check()
        flags = trunc(flags)
        check(bool(flags) and not flags & ~_CHANGES, f"Failed to rereg MR: flags {flags:#x}")
        rights = trunc(access) if flags & _R.IBV_REREG_MR_CHANGE_ACCESS else self._core.access
        # Everything is checked before anything changes: after IBV_REREG_MR_ERR_CMD a region would be
        # unusable.
        if rights & _UNSUPPORTED:
            raise unsupported("Failed to rereg MR")
        domain = checked(pd, PD) if flags & _R.IBV_REREG_MR_CHANGE_PD else None
        if domain is not None:
            domain._check()
            check(domain._device is self._device, "Failed to rereg MR: the PD is another device's")
        memory = self._device.memory
        core = None if domain is None else domain._core
        if flags & _R.IBV_REREG_MR_CHANGE_TRANSLATION:
            check(bool(addr) and length > 0, "Failed to rereg MR: no address or length")
            view = processMemory(addr, length, bool(rights & _LOCAL_WRITE))
            segment: Any = self._core.segment
            # A new key: peers that hold the old one were given access to the old memory, not to this.
            memory.reregister(self._core, view, rights, core, addr, present=presence(addr, length))
            if segment is not None:
                self._device.releaseSegment(segment)
            self._buf = addr
        else:
            # IBTA vol. 1 11.2.8 allows new keys; Linux rxe_verbs.c rxe_rereg_user_mr keeps them.
            memory.reregister(self._core, None, rights, core, keepKey=True)
        if domain is not None and self.pd is not None:
            # The old PD can now be closed without this region.
            self.pd._children.discard(self)
            domain._children.add(self)
            self.pd = domain

    # -- what it is

    @property
    def buf(self) -> int:
        """
        The address of the first octet; 0 if there is none.
        """
        return self._buf

    @property
    def lkey(self) -> int:
        """
        The key for local scatter/gather elements, and for peers.
        """
        self._check()
        return self._core.key

    # Linux rxe_mr.c: lkey and rkey are the same number; access flags alone decide what peers may do.
    rkey = lkey

    @property
    def length(self) -> int:
        """
        In octets.
        """
        self._check()
        return self._core.length

    def __str__(self) -> str:
        rows = [
            ("lkey", self.lkey),
            ("rkey", self.rkey),
            ("length", self.length),
            ("buf", self.buf),
            ("handle", self.handle),
        ]
        return f"{type(self).__name__}:\n" + table(rows)


class MREx(MR):
    """
    A memory region with the parameters of C{ibv_reg_mr_ex}.

    @ivar dmah: None.
    """

    _failed = "Failed to register MR using extended API"

    def __init__(
        self,
        pd: PD,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        iova: int | None = None,
        fd: int | None = None,
        fd_offset: int = 0,
        dmah: Any = None,
        implicit: bool = False,
        buf: Any = None,
        **kwargs: Any,
    ) -> None:
        """
        Register memory; C{length}, C{access} and C{address} as in L{MR}.

        @param iova: the address that keys and peers use, if it is another than C{address}.
        @param fd: a DMA buffer's descriptor, not supported; nor are C{dmah} and C{buf}.
        @raise PyverbsRDMAError: as L{MR}.
        """
        # Not MR's, which would register already; likewise in pyverbs/mr.pyx.
        VerbsObject.__init__(self)
        if fd is not None or dmah is not None or buf is not None or implicit:
            raise unsupported(self._failed)
        self.dmah = None
        self._register(checked(pd, PD), trunc(length), trunc(access), address, iova)


class MW(VerbsObject):
    """
    A memory window (IBTA vol. 1 10.6.7.2).
    """

    rank = 40

    def __init__(self, pd: PD, mw_type: int) -> None:
        """
        Allocate a window, not yet bound.

        @param mw_type: one of C{ibv_mw_type}.
        @raise PyverbsRDMAError: there is no such type (EINVAL), or there are too many windows (ENOMEM).
        """
        super().__init__()
        self._allocate(checked(pd, PD), mw_type)

    @verb("Failed to allocate MW")
    def _allocate(self, pd: PD, mw_type: int) -> None:
        pd._check()
        memory = pd._device.memory
        self._core: MemoryWindow = memory.allocateWindow(pd._core, mw_type)
        self._device = pd._device
        # The rkey that the last posted bind of type 1 will give.
        self._promised: int | None = None
        self.pd: PD | None = pd
        self._opened(closing(pd._device, memory.windows.deallocate, self._core), pd)

    def _closed(self) -> None:
        self.pd = None

    @property
    def rkey(self) -> int:
        """
        The key for peers: of type 1 as the last posted bind gives it, of type 2 as the last completed one
        gave it.
        """
        self._check()
        # man ibv_bind_mw(3): the rkey is in the structure as soon as the bind is posted.  If the bind failed,
        # the window's real key shows again; a C program has to restore it itself.
        key = self._promised
        return key if key is not None and key in self._core.reservedKeys else self._core.key

    @property
    def type(self) -> int:
        """
        One of C{ibv_mw_type}.
        """
        self._check()
        return int(self._core.type)

    def __str__(self) -> str:
        rows = [("Rkey", self.rkey), ("Handle", self.handle), ("MW Type", mwtype2str(self.type))]
        return "MW:\n" + table(rows)


def mwtype2str(mw_type: int) -> str:
    """
    @return: the name of a window type.
    """
    name = named(ibv_mw_type, mw_type, "")
    return f"Unknown MW type ({mw_type})" if name.startswith("Unknown") else name


def _take(device: Device, length: int) -> None:
    _taken[device] = _taken.get(device, 0) + length


class DM(VerbsObject):
    """
    Device memory, all zeros at first.

    @ivar length: octets.
    """

    # After the domains of its context, whose queue pairs use its regions.
    rank = 90

    def __init__(self, context: Context, dm_attr: Any = None, **kwargs: Any) -> None:
        """
        Allocate memory.

        @raise PyverbsRDMAError: the length, the alignment or C{comp_mask} is invalid (EINVAL), there is no
            more so much (ENOMEM), or the device has none at all (EOPNOTSUPP).
        """
        super().__init__()
        if kwargs.get("handle") is not None:
            raise unsupported("Failed to import device memory")
        attr: AllocDmAttr = checked(dm_attr, AllocDmAttr)
        self.length = trunc(attr.length)
        self._allocate(checked(context, Context), attr)

    @verb()
    def _allocate(self, context: Context, attr: AllocDmAttr) -> None:
        context._check()
        length, device = self.length, context._device
        most = context.query_device_ex().max_dm_size
        failed = f"Failed to allocate device memory of size {length}. Max available size {most}"
        if not most:
            raise unsupported(failed)
        # A page is aligned to its size, and to no more.
        aligned = 0 <= trunc(attr.log_align_req) < PAGESIZE.bit_length()
        check(0 < length <= most and aligned and not attr.comp_mask, failed)
        if length > most - _taken.get(device, 0):
            raise PyverbsRDMAError(failed, errno.ENOMEM)
        self._memory: mmap | None = mmap(-1, length)
        self._device = device
        _take(device, length)
        self._opened(closing(device, _take, device, -length), context)

    def _closed(self) -> None:
        self._memory = None

    def part(self, offset: int, length: int, failure: str) -> memoryview:
        """
        Some of the memory.  The hub's lock is held.  Not in pyverbs.

        @param offset: in octets, as C{length}.
        @param failure: the verb's text if the range is not within the memory (EINVAL).
        """
        self._check()
        check(0 <= offset <= self.length and 0 <= length <= self.length - offset, failure)
        assert self._memory is not None
        return memoryview(self._memory)[offset : offset + length]

    @locked
    def copied(self, offset: int, length: int, failure: str) -> memoryview:
        """
        As L{part}, for a copy, which has multiples of 4 octets.  Not in pyverbs.
        """
        check(not (offset | length) % _UNIT, failure)
        return self.part(offset, length, failure)

    @locked
    def copy_to_dm(self, dm_offset: int, data: bytes, length: int) -> None:
        """
        Write into the memory.

        @param dm_offset: in octets, a multiple of 4, as C{length} is.
        @param data: at least C{length} octets.
        @raise PyverbsRDMAError: the range is outside of the memory, or no multiple of 4 (EINVAL).
        """
        failure = "Failed to copy to dm"
        check(len(data) >= length, failure)
        self.copied(dm_offset, length, failure)[:] = memoryview(data)[:length]

    @locked
    def copy_from_dm(self, dm_offset: int, length: int) -> bytes:
        """
        @param dm_offset: in octets, a multiple of 4, as C{length} is.
        @return: the octets there.
        @raise PyverbsRDMAError: the range is outside of the memory, or no multiple of 4 (EINVAL).
        """
        return bytes(self.copied(dm_offset, length, "Failed to copy from dm"))

    def export_dmabuf_fd(self) -> int:
        """
        Nothing: no other device can reach it.
        """
        raise unsupported("Failed to export dmabuf FD for DM")


class DMMR(MR):
    """
    A region of device memory, which has no address: requests count its octets from 0.
    """

    _failed = "Failed to register a device MR"

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        """
        Register device memory.

        @param length: octets.
        @param access: bits of C{ibv_access_flags}, with C{IBV_ACCESS_ZERO_BASED}.
        @param offset: of the first octet within C{dm}.
        @raise PyverbsRDMAError: the rights are invalid, or the range is outside of the memory (EINVAL).
        """
        # Not MR's, which would register already.
        VerbsObject.__init__(self)
        self._lend(checked(pd, PD), trunc(length), trunc(access), checked(dm, DM), trunc(offset))

    @verb()
    def _lend(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        pd._check()
        device = pd._device
        view = dm.part(offset, length, self._failed)
        check(bool(access & _ZERO_BASED) and dm._device is device, self._failed)
        self._core = core = device.memory.register(view, access, pd._core)
        self._device, self._buf, self.pd, self._dm = device, 0, pd, dm
        self._opened(closing(device, device.deregisterMemory, core), pd, dm)

    def rereg(
        self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0
    ) -> None:
        """
        Nothing: it stays as it was registered.

        @raise PyverbsRDMAError: always, with EINVAL (Linux C{uverbs_cmd.c ib_uverbs_rereg_mr}).
        """
        self._check()
        raise invalid("Failed to rereg MR: it is device memory")

    def write(self, data: bytes | str, length: int, offset: int = 0) -> None:
        """
        As L{DM.copy_to_dm}: C{offset} counts from the beginning of the device memory.
        """
        self._dm.copy_to_dm(offset, data.encode() if isinstance(data, str) else data, length)

    def read(self, length: int, offset: int) -> bytes:
        """
        As L{DM.copy_from_dm}: C{offset} counts from the beginning of the device memory.
        """
        return self._dm.copy_from_dm(offset, length)
