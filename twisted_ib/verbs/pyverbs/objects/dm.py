"""
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
from twisted_ib.verbs.core.hub import locked
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, closing, invalid, unsupported, verb
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.deviceattr import AllocDmAttr
from twisted_ib.verbs.pyverbs.objects.mr import MR
from twisted_ib.verbs.pyverbs.objects.pd import PD

#: Offsets and lengths of copies are its multiples, in octets.
_UNIT = 4
_ZERO_BASED = int(ibv_access_flags.IBV_ACCESS_ZERO_BASED)
#: Octets that were allocated of each device.
_taken: WeakKeyDictionary[Device, int] = WeakKeyDictionary()


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
