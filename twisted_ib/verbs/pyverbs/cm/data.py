"""
Shortcuts for memory, work requests and completions of an identifier's own queue pair.

Source: rdma-core 65, C{pyverbs/cmid.pyx}, C{librdmacm/rdma_verbs.h}.
"""

from __future__ import annotations

from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.verb import check, verb
from twisted_ib.verbs.pyverbs.base.wc import WC
from twisted_ib.verbs.pyverbs.base.wr import SGE, RecvWR, SendWR
from twisted_ib.verbs.pyverbs.cm.view import IdentifierView
from twisted_ib.verbs.pyverbs.enums.cm import RDMA_UDP_QKEY
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags
from twisted_ib.verbs.pyverbs.enums.queues import ibv_send_flags, ibv_wr_opcode
from twisted_ib.verbs.pyverbs.objects.ah import AH
from twisted_ib.verbs.pyverbs.objects.cq import CQ
from twisted_ib.verbs.pyverbs.objects.mr import MR

_A = ibv_access_flags
_OP = ibv_wr_opcode
_SIGNALED = ibv_send_flags.IBV_SEND_SIGNALED


class DataCalls(IdentifierView):
    """
    The data path calls of an identifier.  C{length} is in octets, the whole region by default; C{flags} are
    bits of C{ibv_send_flags}.
    """

    # -- memory

    def _register(self, size: int, access: int) -> MR:
        self._get().device  # noqa: B018
        # IBTA vol. 1 10.6.3: remote write requires local write; librdmacm/rdma_verbs.h sets local write in
        # all three calls.
        return MR(self, size, int(_A.IBV_ACCESS_LOCAL_WRITE | access))

    def reg_msgs(self, size: int) -> MR:
        """
        Register memory for messages, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, 0)

    def reg_read(self, size: int = 0) -> MR:
        """
        Register memory that the peer may read, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, _A.IBV_ACCESS_REMOTE_READ)

    def reg_write(self, size: int = 0) -> MR:
        """
        Register memory that the peer may write, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, _A.IBV_ACCESS_REMOTE_WRITE)

    # -- requests

    @verb("Failed to Post Receive")
    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """
        Post a receive at the start of a region.

        @raise PyverbsRDMAError: there is no queue pair (EINVAL), or its queue is full (ENOMEM).
        """
        sge = SGE(checked(mr, MR).buf, length or mr.length, mr.lkey)
        self._queuePair().post_recv(RecvWR(num_sge=1, sg=[sge]))

    def _post(self, mr: MR, length: int | None, opcode: int, flags: int) -> SendWR:
        sge = SGE(checked(mr, MR).buf, length or mr.length, mr.lkey)
        return SendWR(num_sge=1, sg=[sge], opcode=opcode, send_flags=int(flags))

    @verb("Failed to Post Send")
    def post_send(self, mr: MR, flags: int = _SIGNALED, length: int | None = None) -> None:
        """
        Send from the start of a region.

        @raise PyverbsRDMAError: there is no queue pair, or it is not in RTS (EINVAL), or its queue is full
            (ENOMEM).
        """
        self._queuePair().post_send(self._post(mr, length, _OP.IBV_WR_SEND, flags))

    @verb("Failed to Post Read")
    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """
        RDMA READ the peer's memory into the start of a region.

        @param remote_addr: the virtual address in the peer's region, and C{rkey} that region's key.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_RDMA_READ, flags)
        request.set_wr_rdma(rkey, remote_addr)
        self._queuePair().post_send(request)

    @verb("Failed to Post Write")
    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """
        RDMA WRITE the start of a region into the peer's memory.

        @param remote_addr: the virtual address in the peer's region, and C{rkey} that region's key.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_RDMA_WRITE, flags)
        request.set_wr_rdma(rkey, remote_addr)
        self._queuePair().post_send(request)

    @verb("Failed to Post Send")
    def post_ud_send(
        self, mr: MR, ah: AH, rqpn: int = 0, flags: int = _SIGNALED, length: int | None = None
    ) -> None:
        """
        Send a datagram from the start of a region.

        @param rqpn: the destination queue pair.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_SEND, flags)
        # librdmacm gives all UD services of RDMA-CM one Q_Key (rdma_cma.h, RDMA_UDP_QKEY), so the event's
        # need not be kept.
        request.set_wr_ud(checked(ah, AH), rqpn, RDMA_UDP_QKEY)
        self._queuePair().post_send(request)

    # -- completions

    def get_recv_comp(self) -> WC | None:
        """
        Wait for a receive to complete, and serve peers meanwhile.

        @raise PyverbsRDMAError: the identifier did not make the completion queue (EINVAL).
        """
        return self._completion(self._get().recvCQ)

    def get_send_comp(self) -> WC | None:
        """
        Wait for a send request to complete, and serve peers meanwhile.

        @raise PyverbsRDMAError: the identifier did not make the completion queue (EINVAL).
        """
        return self._completion(self._get().sendCQ)

    def _completion(self, queue: CQ | None) -> WC:
        # Only queues that the identifier made are waited on: a queue of the program's may hold others'
        # completions, which would be consumed here.
        check(queue is not None, "The identifier has made no such completion queue")
        assert queue is not None
        found: list[WC] = []

        def ready() -> bool:
            found.extend(queue.poll(1)[1])
            return bool(found)

        hub.wait(ready)
        return found[0]
