"""
Every C{IBV_*} and C{RDMA_*} constant of libibverbs and librdmacm, at rdma-core 65.

Each enumeration is a class by its C name, and each member is a name of this module too, as in pyverbs:
C{enums.ibv_qp_state.IBV_QPS_INIT} is C{enums.IBV_QPS_INIT}.  All are integers; plain integers do as well.

Modules:

  - C{cm}: constants of the communication manager, by their C names
  - C{declaring}: enumerations in the words of C
  - C{device}: constants of devices, ports, memory and events, by their C names
  - C{offload}: constants of hardware features
  - C{queues}: constants of queue pairs, requests, completions and shared receive queues, by their C names
"""

from __future__ import annotations

from enum import EnumMeta
from typing import TYPE_CHECKING

# libibverbs/verbs.h: (void *)-1, the allocator's answer "allocate as without me".  64 bits.
IBV_ALLOCATOR_USE_DEFAULT = 0xFFFFFFFFFFFFFFFF

# pyverbs/libibverbs_enums.pyx and pyverbs/librdmacm_enums.pyx, in one namespace.
if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.enums.cm import *  # noqa: F403
    from twisted_ib.verbs.pyverbs.enums.device import *  # noqa: F403
    from twisted_ib.verbs.pyverbs.enums.offload import *  # noqa: F403
    from twisted_ib.verbs.pyverbs.enums.queues import *  # noqa: F403

    def __getattr__(name: str) -> int:
        """
        For type checkers, which do not see L{_spread}.
        """
else:

    def __getattr__(name):
        # PEP 562: who takes enumerations from their modules, as a C program's start, does not wait for all.
        if "_ready" not in globals():
            _spread()
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        if "_ready" not in globals():
            _spread()
        return sorted(globals())


# C's enumerators have no scope; pyverbs makes them visible by C{cpdef enum}.
def _spread() -> None:
    # Not "from", which would ask for these names here.
    import twisted_ib.verbs.pyverbs.enums.cm as first
    import twisted_ib.verbs.pyverbs.enums.device as second
    import twisted_ib.verbs.pyverbs.enums.offload as third
    import twisted_ib.verbs.pyverbs.enums.queues as fourth

    space = globals()
    for module in (first, second, third, fourth):
        space.update({name: value for name, value in vars(module).items() if name[0] != "_"})
    for enumeration in [value for value in space.values() if isinstance(value, EnumMeta)]:
        if enumeration.__module__.startswith(__name__):
            space.update(enumeration.__members__)
    # pyverbs/libibverbs_enums.pyx gives these a second name, with an underscore.
    for name in [name for name in space if name.startswith("IBV_ADVISE_MR_")]:
        space["_" + name] = space[name]
    for name in ("RAW_SCATTER_FCS", "PCI_WRITE_END_PADDING", "CC_DMA_BOUNCE"):
        space["_IBV_DEVICE_" + name] = space["IBV_DEVICE_" + name]
    space["_IBV_ALLOCATOR_USE_DEFAULT"] = IBV_ALLOCATOR_USE_DEFAULT
    space["_ready"] = True
