"""
The queue pair whose consumer chooses its attributes, as that of verbs does (IBTA vol. 1 10.2.4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import HCAError, QueuePairError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.partition import DEFAULT_PKEY, isValid
from twisted_ib.hca.base.states import ATTRIBUTE_NAMES, RECEIVING, QPState, QPType, checkTransition
from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair
from twisted_ib.hca.wire.headers import QPN_MASK

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath

#: L{QueuePair.query}'s values of attributes that were never set.
_UNSET: Final[dict[str, Any]] = dict.fromkeys(
    (ATTRIBUTE_NAMES.keys() - {"alt_ah_attr"}) | {"alt_pkey_index", "alt_port_num", "alt_timeout"}, 0
)
_RC: Final = QPType.RC


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuePair(StreamQueuePair):
    """
    A queue pair whose consumer chooses its attributes, as that of verbs.

    @ivar onEvent: L{None}, or the function to call with an L{EventType} and this object.
    @ivar onRequest: L{None}, or the function that makes the work queues when the peer asks for an operation
        and there are none.
    """

    __slots__ = ("__dict__",)

    # As of a stream's, but to be set.
    type = _RC
    vector: Any = None
    attributes: dict[str, Any] | None = None
    proposal: Any = None
    minRNRTimer = 0
    onEvent: Callable[[EventType, object], None] | None = None
    onRequest: Callable[[], None] | None = None

    def __init__(
        self,
        number: int,
        consumer: Any,
        device: Any = None,
        type: QPType = QPType.RC,
        maxMessage: int = limits.INLINE_MESSAGE,
    ) -> None:
        """
        Make a queue pair in RESET.

        @param type: Its transport service.
        @param maxMessage: The longest message, in bytes, that it posts inline.
        """
        super().__init__(number, consumer, device)
        if type is not _RC:
            self.type = type
        if maxMessage != limits.INLINE_MESSAGE:
            self.maxMessage = maxMessage

    def raiseEvent(self, kind: EventType) -> None:
        if self.onEvent is not None:
            self.onEvent(kind, self)

    def makeWork(self) -> bool:
        if self.onRequest is None:
            return False
        self.onRequest()
        return self.work is not None

    def modify(self, state: QPState, **attributes: Any) -> None:
        """
        Change the state, or attributes within it.

        @param attributes: The transition's attributes by their names in L{twisted_ib.hca.base.states};
            C{ah_attr} is a path, or an address vector that the device resolves.
        @raise QueuePairError: the transition or an attribute is not allowed; then nothing has changed.
        @raise NoRouteError: the address vector's GID is not reachable.
        @raise SharedGIDError: it is an address of this host.
        @raise ResourceLimitError: the device resolves too many addresses.
        """
        self._check(state, attributes)
        if "dest_qp_num" in attributes:
            self.remote = attributes["dest_qp_num"]
        timer = self.minRNRTimer
        if "min_rnr_timer" in attributes:
            self.minRNRTimer = attributes["min_rnr_timer"]
        if "pkey_index" in attributes:
            self.joinPartition(attributes["pkey_index"])
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            if hasattr(address, "gid"):
                self.vector = address
            else:
                self.path = address
        before = self.attributes
        self._remember(state, attributes)
        old, self.state = self.state, state
        if state in RECEIVING:
            if self.path is None:
                pass
            elif old not in RECEIVING:
                self.path = self.path.bind(self)
            else:
                try:
                    self.path.modified(self)
                except QueuePairError:
                    self.state, self.attributes, self.minRNRTimer = old, before, timer
                    raise
        # RESET and ERR: what still comes for it finds no queue pair of its number.
        elif state != QPState.INIT:
            self._leave()
            if state == QPState.RESET:
                self.vector = self.proposal = None
                self.joinPartition(0)
        if self.work is not None:
            self.work.modified(attributes)
        # Last: the path may be known already, and then records can arrive within this call.
        if old not in RECEIVING and self.vector is not None and self.state in RECEIVING:
            self._resolvePath(old, before)

    def _resolvePath(self, old: QPState, before: dict[str, object] | None) -> None:
        # Start resolving the address vector; if the device refuses, modify() must have changed nothing.
        if self.device is not None:
            try:
                self.device.resolvePath(self)
            except HCAError:
                self.state, self.attributes, self.vector = old, before, None
                raise

    def _remember(self, state: QPState, attributes: dict[str, Any]) -> None:
        if state == QPState.RESET:
            self.attributes = None
        elif attributes:
            self.attributes = {**(self.attributes or {}), **attributes}

    def _check(self, state: QPState, attributes: dict[str, Any]) -> None:
        checkTransition(self.type, self.state, state, attributes)
        remote: int = attributes.get("dest_qp_num", 0)
        if not 0 <= remote <= QPN_MASK:
            raise QueuePairError(f"dest_qp_num has 24 bits, not {remote:#x}")
        current = attributes.get("cur_qp_state", self.state)
        if current != self.state:
            raise QueuePairError(f"queue pair {self.number} is in {self.state.name}, not {current!r}")
        if "ah_attr" in attributes:
            address = attributes["ah_attr"]
            isPath = self.path is not None and address in (self.path, self.path.way)
            if self.state in RECEIVING and not isPath and address != self.vector:
                # Positions and outstanding records belong to one path (no migration, IBTA vol. 1 17.2.8).
                raise QueuePairError(f"queue pair {self.number} is connected: its path cannot change")
            if address is None:
                raise QueuePairError(f"queue pair {self.number} needs a path as ah_attr")
            if hasattr(address, "gid"):
                if self.device is None:
                    address.check()
                else:
                    linkLayer = self.device.port.linkLayer
                    address.check(linkLayer)
                    self.device.paths.check(address.key(linkLayer), remote)
        # Most queue pairs are in the default partition, in which nothing is to be checked.
        if "pkey_index" in attributes or self.partition != DEFAULT_PKEY:
            self._checkPartition(state, attributes.get("pkey_index"))
        if self.work is not None:
            self.work.check(state, attributes)

    def _checkPartition(self, state: QPState, index: int | None) -> None:
        key = self.partition
        if index is not None:
            keys = self._partitions().keys
            if not 0 <= index < len(keys):
                raise QueuePairError(f"pkey_index is 0 to {len(keys) - 1}, not {index}")
            key = keys[index]
        # Here and when the table changes, but not per record: a bound queue pair has a partition.
        if state in RECEIVING and not isValid(key):
            raise QueuePairError(f"queue pair {self.number} is in no partition: its P_Key is {key:#06x}")

    def pathFound(self, path: IPath) -> None:
        """
        The path to the address vector is resolved.
        """
        # It may have gone to RESET or ERR, or got its path otherwise, while the lookup ran.
        if self.vector is not None and self.path is None and self.state in RECEIVING:
            self.path = path.bind(self)
            if self.work is not None:
                self.work.pathFound()

    def pathFailed(self, error: Exception) -> None:
        """
        The path to the address vector cannot be resolved.
        """
        if self.vector is not None and self.path is None and self.state in RECEIVING:
            # To work requests the peer is silent; they fail by their own timeout (IBTA vol. 1
            # 9.7.6.1.3), unless the path is found before.
            if self.work is not None:
                self.work.pathFailed(error)
            else:
                self.fail(error)

    def query(self) -> dict[str, Any]:
        """
        Get its attributes and state, by the names of C{struct ibv_qp_attr}.

        @return: C{cap} is the L{Capabilities<twisted_ib.hca.queues.requests.Capabilities>} of its work
            queues, C{ah_attr} the address vector or the path, each L{None} if there is none; attributes
            never set are 0.
        """
        work = self.work
        found = {**_UNSET, **(self.attributes or {})}
        found["qp_state"] = found["cur_qp_state"] = self.state
        found["sq_draining"] = self.state == QPState.SQD and work is not None and not work.requester.drained()
        if self.state in RECEIVING:
            found["dest_qp_num"] = self.remote
        found["ah_attr"] = self.path if self.vector is None else self.vector
        found["cap"] = None if work is None else work.capabilities
        return found
