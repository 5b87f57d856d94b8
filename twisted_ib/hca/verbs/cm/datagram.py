"""
An identifier of a datagram service: SIDR_REQ, SIDR_REP.

The queue pair needs no peer: it is in RTS as soon as it is made.  Who looks for a service hears
where to send to; who serves it hears who asked.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, NoListenerError, PathLostError
from twisted_ib.hca.base.operation import QPN_MASK
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError
from twisted_ib.hca.verbs.base.verb import invalid
from twisted_ib.hca.verbs.cm.call import Call
from twisted_ib.hca.verbs.cm.connparam import ConnParam
from twisted_ib.hca.verbs.cm.event import Target
from twisted_ib.hca.verbs.cm.negotiation import (
    CM_RETRIES,
    RESPONSE_TIMEOUT,
    addressOf,
    datagramAttributes,
    numberOf,
)
from twisted_ib.hca.verbs.cm.stage import Stage
from twisted_ib.hca.verbs.enums.cm import RDMA_UDP_QKEY, rdma_cm_event_type
from twisted_ib.hca.verbs.enums.queues import ibv_qp_state
from twisted_ib.hca.verbs.qp.qpattr import QPAttr
from twisted_ib.hca.wire.cm import SIDR_REP, SIDR_REQ
from twisted_ib.hca.wire.cm.codes import SIDRStatus
from twisted_ib.hca.wire.cm.rdmacm import SIDR_REP_USER_BYTES, serviceID

if TYPE_CHECKING:
    from twisted_ib.hca.verbs.cm.identifier import Identifier

_E, _S = rdma_cm_event_type, ibv_qp_state


class Datagrams(Call):
    """
    One lookup of an identifier.

    @ivar terms: nothing is agreed on.
    """

    initialStates = (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR, _S.IBV_QPS_RTS)
    terms = None

    def __init__(self, identifier: Identifier) -> None:
        super().__init__(identifier)
        self._lookup: Any = None
        self._privateData = b""

    def attributes(self, state: int) -> tuple[QPAttr, int]:
        """
        The attributes for the queue pair's step into a state.

        @raise PyverbsRDMAError: there are none (EINVAL).
        """
        return datagramAttributes(state, RDMA_UDP_QKEY)

    # -- active

    def connect(self, param: ConnParam | None) -> None:
        """
        Ask for the service.

        @raise PyverbsRDMAError: parameters cannot be (EINVAL).
        """
        data = self.header() + (param.private_data if param is not None else b"")
        if len(data) > SIDR_REQ.privateDataBytes:
            raise invalid("Failed to Connect: too much private data")
        self._identifier.step("connect")
        self._privateData = data
        self.findPath()

    def pathFound(self, path: Any) -> None:
        """
        The way is found: send a SIDR_REQ.
        """
        identifier = self._identifier
        assert identifier.destination is not None
        service = serviceID(identifier.portSpace, identifier.destination.port)
        request = SIDR_REQ(serviceID=service, privateData=self._privateData)
        lookups = identifier.device.cm.lookups
        self._lookup = lookups.ask(path, request, self, CM_RETRIES, RESPONSE_TIMEOUT, identifier.now())

    def pathNotFound(self, error: HCAError) -> None:
        """
        There is no way, so nobody is there, or nobody answers.
        """
        nobody = isinstance(error, NoListenerError)
        status = int(SIDRStatus.SERVICE_ID_UNSUPPORTED) if nobody else -numberOf(error)
        self._over(status)

    def found(self, lookup: Any, reply: SIDR_REP) -> None:
        """
        The answer came.
        """
        identifier = self._identifier
        self._lookup = None
        if reply.status != SIDRStatus.VALID:
            self._over(reply.status, reply.privateData)
            return
        identifier.stage = Stage.UP
        address = addressOf(lookup.destination.peer.gid)
        identifier.report(
            _E.RDMA_CM_EVENT_ESTABLISHED,
            privateData=reply.privateData,
            target=Target(address, reply.queuePairNumber, reply.qKey),
        )

    def unreachable(self, lookup: Any) -> None:
        """
        No answer came.
        """
        self._lookup = None
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

    def requested(self, lookup: Any, request: SIDR_REQ) -> None:
        """
        Somebody asks.
        """
        self._lookup = lookup
        lookup.user = self

    def accept(self, param: ConnParam | None) -> None:
        """
        Answer with the queue pair.

        @raise PyverbsRDMAError: there is no queue pair, or parameters cannot be (EINVAL), or the
            peer is gone (ECONNRESET).
        """
        identifier = self._identifier
        data = param.private_data if param is not None else b""
        if identifier.qp is not None:
            number = identifier.qp.qp_num
        elif param is not None and param.qpn <= QPN_MASK:
            number = param.qpn
        else:
            raise invalid("An identifier without a queue pair needs connection parameters with one")
        if len(data) > SIDR_REP_USER_BYTES:
            raise invalid(f"Private data has at most {SIDR_REP_USER_BYTES} octets here")
        identifier.step("accept")
        reply = SIDR_REP(queuePairNumber=number, qKey=RDMA_UDP_QKEY, privateData=data)
        if not self._lookup.answer(reply, identifier.now()):
            raise PyverbsRDMAError("The peer is gone", errno.ECONNRESET)

    def reject(self, privateData: bytes) -> None:
        """
        Answer with no.

        @raise PyverbsRDMAError: there is nothing to answer, or too much to say (EINVAL).
        """
        if len(privateData) > SIDR_REP_USER_BYTES:
            raise invalid(f"Private data has at most {SIDR_REP_USER_BYTES} octets here")
        identifier = self._identifier
        identifier.step("reject")
        self._lookup.reject(SIDRStatus.REJECTED, privateData, identifier.now())

    # -- the end

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer's process is gone.
        """
        if self._identifier.stage is Stage.CALLING:
            self._lookup = None
            self._over(-errno.ETIMEDOUT)

    def disconnect(self) -> None:
        """
        Stop the queue pair: there is no connection.
        """
        self._identifier.bringDown()

    def close(self, device: Any) -> None:
        """
        The identifier is going.
        """
        self.forgetPath()
        lookup, self._lookup = self._lookup, None
        if lookup is not None:
            lookup.user = None
            lookup.close(device.clock())
