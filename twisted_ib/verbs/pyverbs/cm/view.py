"""
The attributes of an identifier that programs see.  Source: rdma-core 65, C{pyverbs/cmid.pyx}.
"""

from __future__ import annotations

import errno
from typing import Any

from twisted_ib.hca.base import attributes
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, invalid
from twisted_ib.verbs.pyverbs.cm.event import CMEventChannel
from twisted_ib.verbs.pyverbs.cm.identifier import Identifier
from twisted_ib.verbs.pyverbs.objects.cq import CQ
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD
from twisted_ib.verbs.pyverbs.qp.qp import QP


class IdentifierView(VerbsObject):
    """
    The read-only side of C{CMID}.
    """

    def __init__(self) -> None:
        super().__init__()
        self._id: Identifier | None = None
        self._channel: CMEventChannel | None = None
        self._info: Any = None

    def _hold(self, identifier: Identifier) -> Identifier:
        self._id = identifier
        self._opened(identifier.close)
        return identifier

    def _get(self) -> Identifier:
        self._check()
        identifier = self._id
        assert identifier is not None
        # After a fork the device is the parent's, and is marked closed in the child.
        if identifier.binding is not None and identifier.binding.device.closed:
            raise PyverbsRDMAError("The identifier's device is closed", errno.ENODEV)
        return identifier

    def _closed(self) -> None:
        self._id = None

    def _queuePair(self) -> QP:
        qp = self._get().qp
        if qp is None:
            raise invalid("The identifier has no queue pair")
        return qp

    # -- what it is

    @property
    def event_channel(self) -> CMEventChannel | None:
        """
        The channel of its events; None if it is synchronous.
        """
        return self._channel

    @property
    def device(self) -> Any:
        """
        The HCA, or None while unbound.  Not in pyverbs.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.device

    @property
    def identifier(self) -> object:
        """
        The endpoint, by which an event names it; None once it is closed.  Not in pyverbs.
        """
        return self._id

    @property
    def context(self) -> Context | None:
        """
        The context of its device; None while unbound.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.ctx

    ctx = context

    @property
    def pd(self) -> PD | None:
        """
        The protection domain of its queue pair; None while unbound.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.pd

    @property
    def qp(self) -> QP | None:
        """
        Its queue pair, or None.  Not in pyverbs, nor are the next three.
        """
        return None if self._id is None else self._id.qp

    @property
    def send_cq(self) -> CQ | None:
        """
        The completion queue made for its sends, or None.
        """
        return None if self._id is None else self._id.sendCQ

    @property
    def recv_cq(self) -> CQ | None:
        """
        The completion queue made for its receives, or None.
        """
        return None if self._id is None else self._id.recvCQ

    @property
    def local_addr(self) -> tuple[str, int] | None:
        """
        Its address and port (C{rdma_get_local_addr}), or None.
        """
        source = None if self._id is None else self._id.source
        return None if source is None else (source.host, source.port)

    @property
    def peer_addr(self) -> tuple[str, int] | None:
        """
        The peer's address and port (C{rdma_get_peer_addr}), or None.  Not in pyverbs.
        """
        there = None if self._id is None else self._id.destination
        return None if there is None else (there.host, there.port)

    @property
    def qpn(self) -> int | None:
        """
        The number of its queue pair, or None.
        """
        qp = self.qp
        return None if qp is None else qp.qp_num

    @property
    def dev_name(self) -> str:
        """
        The name of its device.

        @raise PyverbsRDMAError: it is unbound (EINVAL).
        """
        device = self._get().device
        return str(device.name)

    @property
    def port_num(self) -> int:
        """
        The port number of its device; 0 while unbound.
        """
        # Devices have one port; librdmacm reports 0 before the identifier is bound.
        return 0 if self.device is None else attributes.PORT
