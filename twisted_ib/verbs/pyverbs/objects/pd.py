"""
Protection domains.  Source: rdma-core 65, C{pyverbs/pd.pyx}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, closing, unsupported, verb
from twisted_ib.verbs.pyverbs.base.wr import SGE
from twisted_ib.verbs.pyverbs.enums.device import ibv_parent_domain_init_attr_mask
from twisted_ib.verbs.pyverbs.objects.device import Context

_MASK = ibv_parent_domain_init_attr_mask
_WITH_CONTEXT = int(
    _MASK.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | _MASK.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
)


class PD(VerbsObject):
    """
    A protection domain: objects of one domain cannot use those of another (IBTA vol. 1 10.2.3).
    """

    rank = 80

    def __init__(self, creator: Any, **kwargs: Any) -> None:
        """
        @param creator: a L{Context}, or a CMID whose domain is shared.
        @raise PyverbsUserError: it is something else.
        @raise PyverbsRDMAError: there are too many (ENOMEM).
        """
        super().__init__()
        # ibv_import_pd needs the kernel's objects, which another process has opened.
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
        # librdmacm/cma.c: all identifiers of a device share one domain; pyverbs wraps it a second time.
        elif isinstance(getattr(creator, "pd", None), PD):
            self._share(creator.pd)
        else:
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")

    def _share(self, other: PD) -> None:
        other._check()
        self.ctx = other.ctx
        self._device, self._core = other._device, other._core
        # The core domain must outlive this name: closing the other one first is EBUSY.
        self._core.hold("domains that share it")
        self._opened(closing(self._device, self._core.release, "domains that share it"), self.ctx, other)

    @property
    def pd(self) -> int:
        """
        An integer in place of the C pointer.
        """
        return id(self)

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[SGE]) -> int:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there is no on-demand paging, and so nothing to
            prefetch.
        """
        raise unsupported("Failed to advise MR")

    def _closed(self) -> None:
        self.ctx = None


@attrs.define(eq=False)
class ParentDomainContext(PyverbsObject):
    """
    A program's allocator for provider objects (C{struct ibv_parent_domain_init_attr}).  It is never called:
    the device needs no memory of the program.

    @ivar p_alloc: the allocate callback.
    @ivar p_free: the free callback.
    @ivar user_data: any object, for the callbacks.
    """

    pd: PD
    p_alloc: Callable[..., int] = attrs.field(alias="alloc_func")
    p_free: Callable[..., object] = attrs.field(alias="free_func")
    user_data: Any = None


class ParentDomainInitAttr(PyverbsObject):
    """
    The attributes of a new parent domain.

    @ivar pd_context: an allocator, or None.
    @ivar comp_mask: bits of C{ibv_parent_domain_init_attr_mask}.
    """

    def __init__(self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: int = 0) -> None:
        """
        The parameters are the attributes; C{pd_context} sets its bits of C{comp_mask}.

        @raise PyverbsUserError: C{comp_mask} has these bits without C{pd_context}.
        """
        self.pd = checked(pd, PD)
        if pd_context is None and comp_mask & _WITH_CONTEXT:
            raise PyverbsUserError("comp_mask bits ALLOCATORS/PD_CONTEXT require pd_context to be provided")
        self.pd_context = pd_context
        # pyverbs/pd.pyx: both bits, as the callbacks reach C through pd_context.
        self.comp_mask = int(comp_mask | (_WITH_CONTEXT if pd_context else 0))


class ParentDomain(PD):
    """
    A protection domain with the same rights as another: C{ibv_alloc_parent_domain}.

    @ivar protection_domain: the other.
    """

    rank = 50

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        """
        @param attr: names the other domain.
        @raise PyverbsRDMAError: it asks for more than an allocator (EOPNOTSUPP).
        """
        VerbsObject.__init__(self)
        checked(context, Context)
        if attr.comp_mask & ~_WITH_CONTEXT:
            raise unsupported("Failed to allocate Parent Domain")
        self.protection_domain: PD | None = attr.pd
        # Kept, so that the allocator lives as long as the domain.
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
