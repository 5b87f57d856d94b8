"""
Connection parameters.  Source: rdma-core 65, C{pyverbs/cmid.pyx}, C{ConnParam}; C{rdma_connect(3)}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, table, u8, u32


@attrs.define(eq=False)
class ConnParam(PyverbsObject):
    """
    The parameters of C{rdma_connect} and C{rdma_accept}, as C{struct rdma_conn_param}.
    """

    #: Incoming READs and atomics that this side serves at a time.
    resources: int = attrs.field(default=1, converter=u8)
    #: Outgoing READs and atomics that this side has outstanding at a time.
    depth: int = attrs.field(default=1, converter=u8)
    #: 1 for end-to-end flow control.
    flow_control: int = attrs.field(default=0, converter=u8)
    # IBTA vol. 1 12.7: both retry counts have three bits in the REQ.  pyverbs leaves larger values to the
    # kernel, which caps them at 7 (Linux cma.c, cma_connect_ib).
    #: The peer's retry count for unacknowledged requests, 0 to 7.
    retry: int = attrs.field(default=5, converter=u8)
    #: The peer's RNR retry count, 0 to 7; 7 retries without limit.
    rnr_retry: int = attrs.field(default=5, converter=u8)
    #: 1 if the queue pair has a shared receive queue.
    srq: int = attrs.field(default=0, converter=u8)
    #: The queue pair's number; ignored if the CMID has its own queue pair.
    qpn: int = attrs.field(default=0, converter=u32, alias="qp_num")
    # IBTA vol. 1 12.6: private data has no length on the wire, the area is padded with zeros.  In RDMA_PS_TCP
    # the header of annex A11 takes 36 of the REQ's 92 octets.
    #: The most octets of private data that L{set_private_data} keeps (C{RDMA_PS_TCP}: 56 in a connect, 196 in
    #: an accept).
    data_len: int = attrs.field(default=0, converter=u8)
    _private_data: bytes = attrs.field(default=b"", init=False)

    @property
    def private_data(self) -> bytes:
        """
        The private data, C{bytes}.
        """
        return self._private_data

    def set_private_data(self, data: bytes) -> None:
        """
        Set the private data, truncated to C{data_len} octets.  Empty data changes nothing.
        """
        # pyverbs/cmid.pyx truncates to data_len without an error too.
        kept = bytes(data[: self.data_len])
        if kept:
            self._private_data = kept

    def __str__(self) -> str:
        """
        A heading, then one line per field.
        """
        rows = [
            ("responder resources", self.resources),
            ("initiator depth", self.depth),
            ("flow control", self.flow_control),
            ("retry count", self.retry),
            ("rnr retry count", self.rnr_retry),
            ("srq", self.srq),
            ("qp number", self.qpn),
        ]
        return "Connection parameters: \n" + table(rows, width=4)
