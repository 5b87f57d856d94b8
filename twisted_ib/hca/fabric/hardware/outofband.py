"""
Queue pairs that programs connect by themselves, with C{ibv_modify_qp}: the peer's number and GID have come by
some other way, without rdma_cm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted_ib.errors import NoRouteError, QueuePairError
from twisted_ib.hca.base.states import ATTRIBUTE_NAMES, QPAttribute, QPState, QPType
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.streams import PeerPath
from twisted_ib.hca.fabric.hardware.adapterpath import AdapterPath
from twisted_ib.hca.fabric.hardware.provider import told
from twisted_ib.hca.wire.opcodes import UNRELIABLE

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import BoundQueuePair
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
    from twisted_ib.hca.fabric.hardware.provider import AdapterQueuePair
    from twisted_ib.hca.services.address import AddressVector

#: The attributes that a program may change while its queue pair is connected.
_CHANGING: Final = ("qp_access_flags", "min_rnr_timer")
#: The attributes of each step; those of the last have no default.
_STEPS: Final[dict[QPState, tuple[str, ...]]] = {
    QPState.RESET: (),
    QPState.INIT: ("pkey_index", "port_num", "qp_access_flags"),
    QPState.RTR: ("path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"),
    QPState.RTS: ("sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"),
}
#: Those that only a reliable connection has (IBTA vol. 1 table 91).
_RELIABLE: Final = frozenset(
    "max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry max_rd_atomic".split()
)


class PeersWay(PeerPath):
    """
    The path to the GID of a peer whose number the queue pair has.
    """

    __slots__ = ()

    def bind(self, queuePair: BoundQueuePair, message: object = None) -> AdapterPath:
        """
        @return: the queue pair's own path.
        @raise QueuePairError: the adapter does not take the attributes.
        """
        fabric: HardwareFabric = self.fabric
        stream = fabric.stream(self, None, OutOfBandPath)
        stream.attach(queuePair)
        return stream


class OutOfBandPath(AdapterPath):
    """
    The path of one such queue pair. The adapter's queue pair is as old as ours and takes its steps; it is in
    RESET while there is no path.
    """

    _isSending = False
    _absent: frozenset[str] = frozenset()

    def attach(self, queuePair: BoundQueuePair) -> None:
        """
        The queue pair is in RTR.

        @raise QueuePairError: the adapter does not take its attributes.
        @raise NoRouteError: the adapter connects by rdma_cm alone.
        """
        self._attributes: dict[str, int] = queuePair.attributes or {}
        self._vector = self._vectorOf(queuePair.vector)
        self._isDisconnected = True
        self.queuePair = queuePair
        if queuePair.type == QPType.UC:
            self._absent, self.service = _RELIABLE, UNRELIABLE
        try:
            self.create(queuePair)
            self._step(QPState.RTR)
        except (OSError, QueuePairError) as error:
            self.queuePair = None
            self.close()
            text = told(error) if isinstance(error, OSError) else error
            raise QueuePairError(f"the adapter's queue pair cannot be connected: {text}") from None
        self._isReady = True

    def _vectorOf(self, vector: AddressVector) -> object:
        fabric: HardwareFabric = self.fabric
        index = fabric.gidIndex()
        if index < 0:
            self.close()
            raise NoRouteError(
                f"adapter {fabric.adapter} connects queue pairs by rdma_cm alone, having no GID of RoCE v2:"
                f" {gidText(vector.gid)} cannot be reached"
            )
        return fabric.verbs.AHAttr(
            dgid=vector.gid.to_bytes(16, "big"),
            sgid_index=index,
            is_global=1,
            port_num=vector.port,
            hop_limit=vector.hopLimit,
            traffic_class=vector.trafficClass,
            flow_label=vector.flowLabel,
            sl=vector.serviceLevel,
        )

    def _obtain(self, domain: object, queuePair: BoundQueuePair | None) -> AdapterQueuePair:
        fabric: HardwareFabric = self.fabric
        found = fabric.reserved.get(queuePair.number) if queuePair is not None else None
        if found is None or isinstance(found, AdapterPath):
            raise QueuePairError("rdma_cm has connected it before, or it was made without a GID of RoCE v2")
        return found

    def _step(self, state: QPState, **others: int) -> None:
        given = self._given(self._attributes, _STEPS[state])
        mask = int(QPAttribute.STATE)
        vector = None
        if state is QPState.RTR:
            given["dest_qp_num"] = self.queuePair.remote
            mask |= QPAttribute.AV
            vector = self._vector
        self._change(state, mask, vector, given)

    def _given(self, attributes: dict[str, int], names: tuple[str, ...]) -> dict[str, int]:
        return {name: int(attributes[name]) for name in names if name not in self._absent}

    def _change(self, state: QPState, mask: int, vector: object, given: dict[str, int]) -> None:
        if "qp_access_flags" in given:
            given["qp_access_flags"] &= self.fabric.connector.rights
        for name in given:
            mask |= ATTRIBUTE_NAMES[name]
        self._verbs.modify(int(mask), vector, qp_state=int(state), **given)

    def modified(self, queuePair: BoundQueuePair) -> None:
        if queuePair.state is not QPState.RTS:
            return
        attributes = queuePair.attributes or {}
        names: tuple[str, ...] = () if self._isSending else _STEPS[QPState.RTS]
        changing = self._given(attributes, _CHANGING)
        if any(self._attributes[name] != value for name, value in changing.items()):
            names += _CHANGING
        if names:
            # In one step, which is taken as a whole or not at all.
            given = self._given(attributes, names)
            try:
                self._change(QPState.RTS, int(QPAttribute.STATE), None, given)
            except OSError as error:
                raise QueuePairError(f"the adapter does not take the attributes: {told(error)}") from None
        self._attributes, self._isSending = attributes, True

    def unbind(self, queuePair: BoundQueuePair) -> None:
        """
        The queue pair is connected no more; as at an adapter's, what is not done is not sent.
        """
        if self.queuePair is queuePair:
            self.queuePair = None
            self.waiting.clear()
            self.unacknowledged.clear()
            self._held.clear()
            self._sent.clear()
            self._batch.clear()
            self.close()

    def _returnQueuePair(self) -> None:
        try:
            self._verbs.modify(int(QPAttribute.STATE), None, qp_state=int(QPState.RESET))
        except OSError:
            # Its adapter is gone.
            self.fabric.count("hardware_cm_refused")
        self.fabric.purge(self.adapterNumber)
