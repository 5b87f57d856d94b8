"""
An identifier of a datagram service: SIDR_REQ, SIDR_REP (IBTA vol. 1 12.11).

The queue pair needs no connection: it is in RTS from the start.  The active side learns the address, queue
pair number and Q_Key to send to; the passive side learns the sender's address.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import NoListenerError, PathLostError
from twisted_ib.hca.connection import LookupReply, LookupRequest, SIDRStatus
from twisted_ib.hca.connection.rdmacm import serviceID
from twisted_ib.hca.wire.headers import QPN_MASK
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import invalid
from twisted_ib.verbs.pyverbs.cm.call import Call, Stage
from twisted_ib.verbs.pyverbs.cm.connparam import ConnParam
from twisted_ib.verbs.pyverbs.cm.event import Target
from twisted_ib.verbs.pyverbs.cm.negotiation import (
    CM_RETRIES,
    RESPONSE_TIMEOUT,
    addressOf,
    checkPrivateData,
    datagramAttributes,
    errnoFor,
)
from twisted_ib.verbs.pyverbs.enums.cm import RDMA_UDP_QKEY, rdma_cm_event_type
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_state
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier

_E, _S = rdma_cm_event_type, ibv_qp_state


class Datagrams(Call):
    """
    The service lookup of one identifier.

    @ivar terms: None: datagrams negotiate nothing.
    """

    # librdmacm/cma.c, ucma_init_ud_qp: a UD queue pair needs no peer for RTS.
    initialStates = (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR, _S.IBV_QPS_RTS)
    terms = None

    def __init__(self, identifier: Identifier) -> None:
        super().__init__(identifier)
        self.connection: Any = None
        self._privateData = b""

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """
        The attributes of the queue pair's transition into a state.

        @raise PyverbsRDMAError: there is no such transition (EINVAL).
        """
        return datagramAttributes(state, RDMA_UDP_QKEY)

    # -- active

    def connect(self, param: ConnParam | None) -> None:
        """
        Begin to look up the service.

        @raise PyverbsRDMAError: bad parameters (EINVAL).
        """
        data = self.header() + (param.private_data if param is not None else b"")
        if len(data) > self._identifier.privateBytes.lookup:
            raise invalid("Failed to Connect: too much private data")
        self._identifier.step("connect")
        self._privateData = data
        self.findPath()

    def send(self, path: IPeerPath) -> Any:
        identifier = self._identifier
        assert identifier.destination is not None
        service = serviceID(identifier.portSpace, identifier.destination.port)
        request = LookupRequest(service, self._privateData, RESPONSE_TIMEOUT, CM_RETRIES)
        return identifier.device.sendLookup(path, request, self, identifier.now())

    def unsent(self, error: Exception) -> None:
        nobody = isinstance(error, NoListenerError)
        # SIDR status 1, as the peer's CM would answer for an unknown service (Linux ib_cm.h,
        # ib_cm_sidr_status).
        status = int(SIDRStatus.SERVICE_ID_UNSUPPORTED) if nobody else -errnoFor(error)
        self._over(status)

    def found(self, lookup: Any, reply: LookupReply) -> None:
        """
        The SIDR_REP was received.
        """
        identifier = self._identifier
        self.connection = None
        # Linux cma.c, cma_sidr_rep_handler reports UNREACHABLE with the SIDR status as event status.
        if reply.status != SIDRStatus.VALID:
            self._over(reply.status, reply.privateData)
            return
        identifier.stage = Stage.UP
        address = addressOf(lookup.destination)
        identifier.report(
            _E.RDMA_CM_EVENT_ESTABLISHED,
            privateData=reply.privateData,
            target=Target(address, reply.queuePairNumber, reply.qKey),
        )

    def unanswered(self) -> None:
        self._over(-errno.ETIMEDOUT)

    def _over(self, status: int, privateData: bytes = b"") -> None:
        self._identifier.stage = Stage.OVER
        self._identifier.report(_E.RDMA_CM_EVENT_UNREACHABLE, status=status, privateData=privateData)

    def establish(self) -> None:
        """
        @raise PyverbsRDMAError: always (EINVAL): there is no connection.
        """
        raise invalid("Failed to establish: datagrams need no connection")

    # -- passive

    def requested(self, lookup: Any, request: LookupRequest) -> None:
        """
        A SIDR_REQ was received.
        """
        self.connection = lookup
        lookup.user = self

    def accept(self, param: ConnParam | None) -> None:
        """
        Answer with the queue pair number.

        @raise PyverbsRDMAError: there is no queue pair, or bad parameters (EINVAL), or the peer is gone
            (ECONNRESET).
        """
        identifier = self._identifier
        data = param.private_data if param is not None else b""
        if identifier.qp is not None:
            number = identifier.qp.qp_num
        # IBTA vol. 1 12.11: the SIDR_REP has 24 bits for the queue pair number.
        elif param is not None and param.qpn <= QPN_MASK:
            number = param.qpn
        else:
            raise invalid("An identifier without a queue pair needs connection parameters with one")
        checkPrivateData(data, identifier.privateBytes.lookupReply)
        identifier.step("accept")
        # Linux cma.c answers with the Q_Key of RDMA-CM's UD services too, RDMA_UDP_QKEY.
        reply = LookupReply(queuePairNumber=number, qKey=RDMA_UDP_QKEY, privateData=data)
        if not self.connection.answer(reply, identifier.now()):
            raise PyverbsRDMAError("The peer is gone", errno.ECONNRESET)

    def reject(self, privateData: bytes) -> None:
        """
        Answer with status REJECTED.

        @raise PyverbsRDMAError: there is no request, or too much private data (EINVAL).
        """
        identifier = self._identifier
        checkPrivateData(privateData, identifier.privateBytes.lookupReply)
        identifier.step("reject")
        self.connection.reject(SIDRStatus.REJECTED, privateData, identifier.now())

    # -- the end

    def pathLost(self, reason: PathLostError) -> None:
        # Once the lookup has an answer nothing depends on the path any more.
        if self._identifier.stage is Stage.REQ_SENT:
            self.connection = None
            self._over(-errno.ETIMEDOUT)

    def disconnect(self) -> None:
        """
        Flush the queue pair; there is no connection to end.
        """
        self._identifier.bringDown()

    def close(self, device: Any) -> None:
        """
        Release the lookup; the identifier is closing.
        """
        lookup, self.connection = self.connection, None
        self.giveUp()
        if lookup is not None:
            lookup.user = None
            lookup.close(device.clock())
