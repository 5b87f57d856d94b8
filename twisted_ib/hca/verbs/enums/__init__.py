"""
Every C{IBV_*} and C{RDMA_*} constant, with libibverbs' and librdmacm's value at rdma-core 65.

Each enumeration is a class by its C name, as in pyverbs, and each of its members stands here
by itself too: C{enums.ibv_qp_state.IBV_QPS_INIT} is C{enums.IBV_QPS_INIT}.  All are integers;
plain integers do as well wherever a constant does.
"""

from __future__ import annotations

from enum import EnumMeta
from typing import TYPE_CHECKING

# This module is the sum of the four: pyverbs' two modules of constants, in one namespace.
from twisted_ib.hca.verbs.enums.cm import *  # noqa: F403
from twisted_ib.hca.verbs.enums.device import *  # noqa: F403
from twisted_ib.hca.verbs.enums.offload import *  # noqa: F403
from twisted_ib.hca.verbs.enums.queues import *  # noqa: F403

# The pointer that says: as without a parent domain's allocator.  (void *)-1, of 64 bits.
IBV_ALLOCATOR_USE_DEFAULT = 0xFFFFFFFFFFFFFFFF

if TYPE_CHECKING:

    def __getattr__(name: str) -> int:
        """
        For type checkers, which do not see L{_spread}.
        """


def _spread() -> None:
    """
    Name here each member of the enumerations, and with an underscore in front those constants
    that pyverbs names so.
    """
    space = globals()
    for enumeration in [value for value in space.values() if isinstance(value, EnumMeta)]:
        if enumeration.__module__.startswith(__name__):
            space.update(enumeration.__members__)
    for name in [name for name in space if name.startswith("IBV_ADVISE_MR_")]:
        space["_" + name] = space[name]
    for name in ("RAW_SCATTER_FCS", "PCI_WRITE_END_PADDING", "CC_DMA_BOUNCE"):
        space["_IBV_DEVICE_" + name] = space["IBV_DEVICE_" + name]
    space["_IBV_ALLOCATOR_USE_DEFAULT"] = IBV_ALLOCATOR_USE_DEFAULT


_spread()
