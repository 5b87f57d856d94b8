"""
The reliable connections of an interface (RFC 4755), by the device's connection management.

The service of an interface is C{0x1000000000000000 | QPN}, of its UD queue pair.  The private data of REQ and
REP is the interface's own: there is no header of the RDMA CM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.interfaces import IConnectionUser, IServiceListener
from twisted_ib.hca.queues.consumers import IConsumer
from twisted_ib.ipoib.protocol.wire import serviceID

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, IPeerPath
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.ipoib.protocol.machine import Machine

#: Receives that are posted; one is posted again for each packet.
_RECEIVES: Final = 64
#: The CM's response timeout code: about half a second between two REQs (4.096 us * 2^17).
_RESPONSE_TIMEOUT: Final = 17
_REQUESTS: Final = 3
#: Retries of data, without an acknowledgement and after RNR NAKs; 7 RNR retries are without limit.
_RETRIES: Final = 7
_MTU: Final = MTU_CODES[limits.DATAGRAM_BYTES]
_RTS: Final = QPState.RTS


@implementer(IConsumer, IConnectionUser)
class Connection(ActiveSide):
    """
    One connection, on which its active side alone sends, or an attempt to make it.

    @ivar queuePair: its queue pair; L{None} before L{begin} or L{open}.
    """

    device: Device

    __slots__ = ("_owner", "_privateData", "_service", "queuePair")

    def __init__(self, owner: Connections, service: int = 0, privateData: bytes = b"") -> None:
        """
        @param service: of the passive side, with the private data of the REQ; 0 on the passive side.
        """
        super().__init__(owner.device)
        self._owner = owner
        self._service, self._privateData = service, privateData
        self.queuePair: Any = None

    def open(self) -> None:
        """
        Create the queue pair.

        @raise ResourceLimitError: there are too many.
        """
        owner = self._owner
        self.queuePair = owner.device.createStreamQueuePair(self)
        self.queuePair.posted = _RECEIVES
        if owner.partition:
            self.queuePair.joinPartition(owner.partition)

    # -- the active side

    def begin(self, gid: int) -> None:
        """
        Find the HCA of a port, and send it a REQ.
        """
        try:
            self.open()
        except (HCAError, OSError) as reason:
            self.unsent(reason)
        else:
            self.find(self.device.services.connectHCA, gid)

    def send(self, path: IPeerPath) -> IConnection:
        request = ConnectRequest(
            serviceID=self._service,
            privateData=self._privateData,
            localQPN=self.queuePair.number,
            responseTimeout=_RESPONSE_TIMEOUT,
            requestRetries=_REQUESTS,
            retryCount=_RETRIES,
            rnrRetryCount=_RETRIES,
            pathMTU=_MTU,
        )
        return self.device.sendRequest(path, request, self, self.device.clock())

    def unsent(self, reason: Exception) -> None:
        # The machine is told of it in a later call.
        self.device.timers.start(0.0, self.ended)

    def join(self, connection: IConnection, reply: ConnectReply) -> bool:
        # A packet for the passive side, which waits for nothing, arrives next.
        self.queuePair.connect(connection.destination, reply.localQPN, reply)
        return False

    def connected(self, reply: ConnectReply) -> None:
        self._service = 0
        self._owner.machine.connected(self, reply.privateData, self.device.clock())

    def refused(self, rejection: Rejection) -> None:
        self.ended()

    def unanswered(self) -> None:
        self.ended()

    def ended(self) -> None:
        """
        It is over, or was never made: tell the machine.
        """
        if self.isOver:
            return
        isAttempt = self._service
        self.close()
        machine, now = self._owner.machine, self._owner.device.clock()
        if isAttempt:
            machine.connectFailed(self, now)
        else:
            machine.connectionEnded(self, now)

    # -- packets

    def post(self, frame: Buffer) -> bool:
        """
        Send a frame.

        @param frame: bytes or a memoryview; copied before this returns, if it waits for room too.
        @return: False if there is no room.
        """
        queuePair, length = self.queuePair, len(frame)
        if self.isOver or queuePair.state is not _RTS:
            return False
        # As QueuePair.postInline, without its calls.
        pending = queuePair.pending
        if not pending:
            if queuePair.path.post(queuePair.sends | queuePair.remote, b"", frame, length):
                return True
        elif len(pending) >= limits.INLINE_SENDS:
            return False
        queuePair.keep(b"", frame, length)
        return True

    def received(self, buffer: Buffer, start: int, stop: int) -> None:
        self.queuePair.posted = _RECEIVES
        owner = self._owner
        owner.machine.connectedReceived(self, buffer, start, stop, owner.clock())

    def resume(self) -> None:
        pass  # Packets that find no room are lost, and nobody waits.

    # -- the end

    def failed(self, reason: Exception) -> None:
        self.ended()

    def peerDisconnected(self, connection: IConnection) -> None:
        self.connection = None
        self.ended()

    def forked(self) -> None:
        self.isOver = True

    def close(self) -> None:
        """
        End it.  Idempotent.
        """
        if self.isOver:
            return
        self.isOver = True
        self._owner.open.pop(self, None)
        if self.queuePair is not None:
            self.queuePair.close()
        self.giveUp()


@implementer(IServiceListener)
class Connections:
    """
    The connections of one interface.

    @ivar machine: the interface's machine.
    @ivar partition: the index of its P_Key in the port's table.
    @ivar open: the connections of both directions, and the attempts.
    """

    def __init__(self, device: Device, number: int, partition: int) -> None:
        self.device, self.clock = device, device.clock
        self.partition = partition
        self.machine: Machine
        self.open: dict[Connection, None] = {}
        self._service = serviceID(number)
        device.services.serve(self._service, self)

    def connect(self, gid: int, number: int, privateData: bytes) -> Connection:
        """
        See L{IMachineDriver.connect<twisted_ib.ipoib.protocol.interfaces.IMachineDriver.connect>}.

        @param number: the peer's UD queue pair.
        """
        made = Connection(self, serviceID(number), privateData)
        self.open[made] = None
        made.begin(gid)
        return made

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        device = self.device
        now = device.clock()
        if request.unsupported is not None:
            connection.reject(request.unsupported, b"", now)
            return
        made = Connection(self)
        try:
            made.open()
        except HCAError:
            connection.reject(RejectReason.NO_RESOURCES, b"", now)
            return
        self.open[made] = None
        gid = device.paths.gidOf(connection.destination)
        privateData = self.machine.connectionRequested(made, gid, request.privateData, now)
        if privateData is None:
            made.close()
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", now)
            return
        reply = ConnectReply(privateData, made.queuePair.number, rnrRetryCount=_RETRIES)
        try:
            connection.destination.prepareReply(reply, request)
            connection.user, made.connection = made, connection
            made.queuePair.connect(connection.destination, request.localQPN, request)
        except HCAError:
            connection.reject(RejectReason.NO_RESOURCES, b"", now)
            made.connection = None
            made.ended()
            return
        if not connection.accept(reply, now, isConfirmed=False):
            made.connection = None
            made.ended()

    def requestWithdrawn(self, connection: IConnection) -> None:
        pass  # Each request is answered at once.

    def close(self) -> None:
        """
        End all, and serve no more.
        """
        if not self.device.closed:
            self.device.services.serveNoMore(self._service)
        for each in list(self.open):
            each.close()
