"""
Protection domains.  Source: rdma-core 65, C{pyverbs/pd.pyx}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsObject, checked
from twisted_ib.hca.verbs.base.errors import PyverbsUserError
from twisted_ib.hca.verbs.base.verb import VerbsObject, check, closing, unsupported, verb
from twisted_ib.hca.verbs.base.wr import SGE
from twisted_ib.hca.verbs.enums.device import ibv_parent_domain_init_attr_mask
from twisted_ib.hca.verbs.objects.device import Context

_MASK = ibv_parent_domain_init_attr_mask
_WITH_CONTEXT = int(
    _MASK.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | _MASK.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
)


class PD(VerbsObject):
    """
    A protection domain: what belongs to one domain is of no use to what belongs to another.

    @ivar ctx: the context that it belongs to.
    """

    rank = 80

    def __init__(self, creator: Any, **kwargs: Any) -> None:
        """
        Allocate a protection domain.

        @param creator: a L{Context}, or a CMID whose domain it is.

        @raise PyverbsUserError: it is something else.
        @raise PyverbsRDMAError: there are too many (ENOMEM).
        """
        super().__init__()
        if kwargs.get("handle") is not None:
            raise unsupported("Failed to import PD")
        self._allocate(creator)

    @verb("Failed to allocate PD")
    def _allocate(self, creator: Any) -> None:
        if isinstance(creator, Context):
            creator._check()
            self.ctx: Context | None = creator
            self._device = device = creator._device
            self._core = device.memory.allocateDomain()
            self._opened(closing(device, device.memory.deallocateDomain, self._core), creator)
        elif isinstance(getattr(creator, "pd", None), PD):
            self._share(creator.pd)
        else:
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")

    def _share(self, other: PD) -> None:
        """
        Be another name of a domain, which that one outlives.
        """
        other._check()
        self.ctx = other.ctx
        self._device, self._core = other._device, other._core
        self._core.hold("domains that share it")
        self._opened(closing(self._device, self._core.release, "domains that share it"), self.ctx, other)

    @property
    def pd(self) -> int:
        """
        A number that stands for it.
        """
        return id(self)

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[SGE]) -> int:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): memory is in its place as soon as it is
            registered.
        """
        raise unsupported("Failed to advise MR")

    def _closed(self) -> None:
        self.ctx = None


@attrs.define(eq=False)
class ParentDomainContext(PyverbsObject):
    """
    A program's allocator for objects of the device, which need no memory of the program here:
    it is not called.

    @ivar pd: the domain it is for.
    @ivar p_alloc: would allocate.
    @ivar p_free: would give back.
    @ivar user_data: whatever these want to find there.
    """

    pd: PD
    p_alloc: Callable[..., int] = attrs.field(alias="alloc_func")
    p_free: Callable[..., object] = attrs.field(alias="free_func")
    user_data: Any = None


class ParentDomainInitAttr(PyverbsObject):
    """
    The attributes of a new parent domain.

    @ivar pd: the domain it is on.
    @ivar pd_context: an allocator, or None.
    @ivar comp_mask: bits of C{ibv_parent_domain_init_attr_mask}.
    """

    def __init__(self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: int = 0) -> None:
        """
        The parameters are the attributes; an allocator sets its bits.

        @raise PyverbsUserError: bits of an allocator without one.
        """
        self.pd = checked(pd, PD)
        if pd_context is None and comp_mask & _WITH_CONTEXT:
            raise PyverbsUserError("comp_mask bits ALLOCATORS/PD_CONTEXT require pd_context to be provided")
        self.pd_context = pd_context
        self.comp_mask = int(comp_mask | (_WITH_CONTEXT if pd_context else 0))


class ParentDomain(PD):
    """
    A protection domain that is the same as another for all who ask for rights.

    @ivar protection_domain: the other.
    """

    rank = 50

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        """
        Allocate a parent domain.

        @param context: of the device.
        @param attr: the domain that it stands for.

        @raise PyverbsRDMAError: it shall do more than that (EOPNOTSUPP).
        """
        VerbsObject.__init__(self)
        checked(context, Context)
        if attr.comp_mask & ~_WITH_CONTEXT:
            raise unsupported("Failed to allocate Parent Domain")
        self.protection_domain: PD | None = attr.pd
        # An allocator lives as long as the domain.
        self._pd_context = attr.pd_context
        self._open(context, attr.pd)

    @verb("Failed to allocate Parent Domain")
    def _open(self, context: Context, pd: PD) -> None:
        pd._check()
        check(pd.ctx is context, "Failed to allocate Parent Domain: the PD is another context's")
        self._share(pd)

    def _closed(self) -> None:
        super()._closed()
        self.protection_domain = None
