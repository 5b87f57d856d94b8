"""
The parameters of a connection.  Source: rdma-core 65, C{pyverbs/cmid.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.hca.verbs.base.base import PyverbsObject, table, u8, u32


@attrs.define(eq=False)
class ConnParam(PyverbsObject):
    """
    What a connect or accept says of the connection.

    @ivar resources: READs and atomics of the peer that are served at a time.
    @ivar depth: READs and atomics to the peer at a time.
    @ivar flow_control: 1 if the device has flow control end to end.
    @ivar retry: how often the peer repeats what is not acknowledged, up to 7.
    @ivar rnr_retry: how often the peer repeats what met no receive; 7 is for ever.
    @ivar srq: 1 if the queue pair takes its receives from a shared queue.
    @ivar qpn: the queue pair's number; of no account if the CMID made it.
    @ivar data_len: the most private data that L{set_private_data} keeps, in octets (C{RDMA_PS_TCP}:
        56 in a connect, 196 in an accept).
    """

    resources: int = attrs.field(default=1, converter=u8)
    depth: int = attrs.field(default=1, converter=u8)
    flow_control: int = attrs.field(default=0, converter=u8)
    retry: int = attrs.field(default=5, converter=u8)
    rnr_retry: int = attrs.field(default=5, converter=u8)
    srq: int = attrs.field(default=0, converter=u8)
    qpn: int = attrs.field(default=0, converter=u32, alias="qp_num")
    data_len: int = attrs.field(default=0, converter=u8)
    _private_data: bytes = attrs.field(default=b"", init=False)

    @property
    def private_data(self) -> bytes:
        """
        The private data, as set.
        """
        return self._private_data

    def set_private_data(self, data: bytes) -> None:
        """
        Set the private data.  Nothing happens if they are empty, or C{data_len} is 0.

        @param data: what is beyond C{data_len} octets of it is cut off.
        """
        kept = bytes(data[: self.data_len])
        if kept:
            self._private_data = kept

    def __str__(self) -> str:
        """
        @return: a heading, then a line for each field.
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
