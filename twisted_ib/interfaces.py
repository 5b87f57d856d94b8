"""
Interfaces of twisted_ib for Twisted programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IProtocol, ITransport
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IAddress, IConnector, IListeningPort, IProducer
    from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory


class IReactorCompletionChannels(Interface):
    """
    A reactor that polls devices between its other work, not only when their descriptors are readable.
    """

    isDriven: bool = Attribute(
        "Whether threads drive it when they block, so that its transports are sockets of theirs; it may be"
        " left out where none do."
    )

    def addChannel(channel: Any) -> None:
        """
        Start polling the device of a L{twisted_ib.internet.channel.DeviceChannel}.
        """

    def removeChannel(channel: Any) -> None:
        """
        Stop polling it.
        """

    def watchChannel(channel: Any) -> None:
        """
        Call its C{doRead} when the device's descriptor is readable, also while it is not polled.
        """

    def unwatchChannel(channel: Any) -> None:
        """
        Undo C{watchChannel}.
        """


# The defaults follow twisted.internet.interfaces.IReactorTCP, listenTCP and connectTCP; the private data
# limits are those of RDMA-CM (IBTA vol. 1 12.6, annex A11).
class IReactorRDMA(Interface):
    """
    A reactor with messages and RDMA besides its streams.
    """

    def listenRDMA(
        port: int,
        factory: Factory,
        interface: str = "",
        backlog: int = 50,
        device: str | None = None,
        privateData: bytes = b"",
        maxMessageSize: int = 65536,
    ) -> IListeningPort:
        """
        Listen on a port of the RDMA-CM port space TCP (C{RDMA_PS_TCP}).

        @param port: 0 for any free port.
        @param factory: makes protocols, which may provide L{IRDMAProtocol}; their transports provide
            L{IRDMATransport}.
        @param interface: the address to bind; all IPv4 addresses by default.
        @param backlog: requests that wait while the port does not accept.
        @param device: the HCA's name; the host's default device by default.
        @param privateData: sent to each peer in the REP, at most 196 bytes.
        @param maxMessageSize: the longest message, in bytes, each way; not negotiated.
        @return: an L{IListeningPort<twisted.internet.interfaces.IListeningPort>}.
        @raise ValueError: C{port}, C{privateData} or C{maxMessageSize} is out of range.
        @raise CannotListenError: the port is unavailable.
        """

    def connectRDMA(
        host: str,
        port: int,
        factory: ClientFactory,
        timeout: float | None = 30,
        bindAddress: tuple[str, int] | None = None,
        device: str | None = None,
        privateData: bytes = b"",
        maxMessageSize: int = 65536,
    ) -> IConnector:
        """
        Connect to a port of C{listenRDMA}.

        @param host: the peer's address or name.
        @param factory: makes the protocol, and is notified of failure and loss.
        @param timeout: seconds; L{None} for no limit.
        @param bindAddress: the local host and port to connect from.
        @param device: the HCA's name; the host's default device by default.
        @param privateData: sent to the peer in the REQ, at most 56 bytes.
        @param maxMessageSize: the longest message, in bytes, each way; not negotiated.
        @return: an L{IConnector<twisted.internet.interfaces.IConnector>}.
        @raise ValueError: an argument is out of range.
        """


# One reliable connection (IBTA vol. 1 9.7); messages are SENDs, which consume one receive of the peer each.
class IRDMATransport(ITransport):
    """
    A connection for messages and RDMA.

    Each C{write} is one message: it arrives whole, or the connection is lost.  Messages and requests start in
    the order of the calls.  If the peer has no receive posted it answers RNR (receiver not ready), and the
    message is repeated without limit; register a producer to be paused meanwhile.

    C{write(data)} sends one message without a report.  Other calls return a Deferred that fires when the peer
    has completed the request, or fails with L{WorkCompletionError<twisted_ib.errors.WorkCompletionError>},
    which has the work completion's status (IBTA vol. 1 11.6.2); after most errors the connection is lost, and
    all other requests fail with C{WR_FLUSH_ERR}.  Cancelling a Deferred only discards its result.

    An invalid argument raises at the call, and nothing is sent: C{TypeError} for a wrong type, else
    C{ValueError}, L{QueuePairError<twisted_ib.errors.QueuePairError>} (a number exceeds its field on the
    wire) or what the call documents.

    C{remoteAddress} and C{remoteKey} are the virtual address of the first byte and the R_Key of the peer's
    region or window, as the peer has announced them.  C{offset} and C{length} (bytes; the rest by default)
    select a part of local memory; L{MemoryAccessError<twisted_ib.errors.MemoryAccessError>} is raised if it
    has no such part.

    After the connection has ended C{write} does nothing, as with TCP; calls that return a Deferred fail it
    with C{WR_FLUSH_ERR}; C{registerMemory} and C{grant} raise.

    All calls belong to the reactor's thread and raise L{WrongThreadError<twisted_ib.errors.WrongThreadError>}
    in another.
    """

    maxMessageSize: int = Attribute("The longest message, in bytes, each way.")
    privateData: bytes = Attribute("What this end said in its REQ or REP: C{bytes}.")
    # The receiver cannot tell padding from data: protocols must carry their own length.
    peerPrivateData: bytes = Attribute(
        "What the peer said in its REQ (56 bytes) or REP (196 bytes), with the zeros that the"
        " message was filled with: the wire has no length for it (IBTA vol. 1 12.6)."
    )
    # ImmDt of the last packet (IBTA vol. 1 9.3).
    immediate: int | None = Attribute(
        "The immediate data of the message that is being delivered, an integer of 32 bits, or"
        " L{None} if it has none."
    )

    def send(data: bytes, immediate: int | None = None) -> Deferred[None]:
        """
        Send one message.

        @param data: C{bytes}, at most C{maxMessageSize}; may be empty.
        @param immediate: immediate data, 32 bits.
        @return: a Deferred that fires with L{None} when the peer has received the message.
        @raise MessageTooLongError: C{data} is too long; nothing was sent.
        """

    def sendRegistered(region: Any, offset: int = 0, length: int | None = None) -> Deferred[None]:
        """
        Send a part of registered memory as one message, without a local copy.  It must not change until the
        peer has received it.

        @param region: from C{registerMemory}.
        @return: a Deferred that fires with L{None} when the peer has received the message.
        @raise MessageTooLongError: it is too long; nothing was sent.
        """

    def rdmaRead(
        length: int, remoteAddress: int, remoteKey: int, region: Any = None, offset: int = 0
    ) -> Deferred[Any]:
        """
        Read the peer's memory (RDMA READ, IBTA vol. 1 9.4.4).

        @param region: registered memory to read into, with C{LOCAL_WRITE}.
        @return: a Deferred that fires with the C{bytes}; with C{region}, with their number.
        """

    def rdmaWrite(
        data: bytes | IRDMARegion,
        remoteAddress: int,
        remoteKey: int,
        offset: int = 0,
        length: int | None = None,
    ) -> Deferred[None]:
        """
        Write to the peer's memory, without notice to the peer (RDMA WRITE, IBTA vol. 1 9.4.3).

        @param data: C{bytes}, or a region of registered memory.
        @return: a Deferred that fires with L{None} when they are written.
        """

    def rdmaWriteWithImmediate(
        data: bytes | IRDMARegion,
        remoteAddress: int,
        remoteKey: int,
        immediate: int,
        offset: int = 0,
        length: int | None = None,
    ) -> Deferred[None]:
        """
        Write as C{rdmaWrite}, and call the C{remoteMemoryWritten} of the peer's protocol.

        @param immediate: 32 bits for it.
        """

    # IBTA vol. 1 9.4.5: 8 bytes, naturally aligned; the responder refuses others with NAK 0x61 (Linux
    # rxe_resp.c).
    def compareAndSwap(remoteAddress: int, remoteKey: int, compare: int, swap: int) -> Deferred[int]:
        """
        Replace 8 bytes of the peer's memory if they equal C{compare} (atomic CmpSwap, IBTA vol. 1 9.4.5).

        @param remoteAddress: a multiple of 8; C{remoteKey} must grant C{REMOTE_ATOMIC}.
        @param compare: 64 bits, as is C{swap}, the new value.
        @return: a Deferred that fires with the previous value.
        """

    def fetchAdd(remoteAddress: int, remoteKey: int, add: int) -> Deferred[int]:
        """
        Add to 8 bytes of the peer's memory (atomic FetchAdd, IBTA vol. 1 9.4.5).

        @param remoteAddress: a multiple of 8; C{remoteKey} must grant C{REMOTE_ATOMIC}.
        @param add: the addend, modulo 2^64.
        @return: a Deferred that fires with the previous value.
        """

    # No remote right by default: an R_Key that leaks must open nothing.
    def registerMemory(sizeOrBuffer: Any, access: int | None = None) -> IRDMARegion:
        """
        Register memory for this connection's peer only.  Several connections may register one buffer.

        @param sizeOrBuffer: the size of new memory in bytes, which a peer of this host maps and copies from
            once; or a buffer, which is used in place.
        @param access: L{Access<twisted_ib.rdma.Access>} bits; by default local write, if the buffer is
            writable, and no remote access.
        @return: an L{IRDMARegion}.  It is closed with the connection at the latest.
        @raise MemoryRegionError: it cannot be registered so.
        @raise ResourceLimitError: there are too many regions, or connections with regions.
        """

    def grant(region: Any, access: int, offset: int = 0, length: int | None = None) -> IRDMAWindow:
        """
        Give the peer access to a part of registered memory through a type 2 memory window
        (IBTA vol. 1 10.6.7.2), which can be revoked while the region stays.

        @param region: from this connection's C{registerMemory}, with C{MW_BIND}, and with C{LOCAL_WRITE} if
            the peer may write; the region's own remote access does not matter.
        @param access: C{REMOTE_READ}, C{REMOTE_WRITE}, C{REMOTE_ATOMIC}; with C{ZERO_BASED} the window's
            first byte has address 0.
        @param length: at least 1.
        @return: an L{IRDMAWindow}.  It is revoked with the region at the latest.
        @raise MemoryAccessError: the range is outside of the region, or the region does not permit this.
        @raise ResourceLimitError: there are too many windows.
        """

    def abortConnection() -> None:
        """
        Discard what is queued and end the connection at once; the peer sees it as lost.
        """


# IBTA vol. 1 annex A4: zero copy is SrcAvail and SinkAvail, urgent data the OOB flags of Data messages.
class ISDPTransport(ITransport):
    """
    A stream with SDP's additions to TCP: zero copy and urgent data.  L{ISDPBufferedProtocol} receives into
    registered memory; L{ISDPUrgentProtocol} receives urgent data.

    All calls belong to the reactor's thread and raise L{WrongThreadError<twisted_ib.errors.WrongThreadError>}
    in another.
    """

    def registerMemory(sizeOrBuffer: Any, access: int | None = None) -> IRDMARegion:
        """
        Register memory for this connection: see L{IRDMATransport.registerMemory}.  The peer gets access for
        each transfer only, so C{access} needs no remote bits.

        @return: an L{IRDMARegion}.
        @raise MemoryRegionError: it cannot be registered so.
        """

    def writeRegistered(region: Any, offset: int = 0, length: int | None = None) -> Deferred[None]:
        """
        Send a part of registered memory without a local copy, in order with C{write}; several may be queued.
        It must not change until it is sent.  A peer of this host copies it once if it can map it, which it
        can for all of a region that C{registerMemory} allocated; of other memory it sees no more than is
        sent.  C{loseConnection} waits for it, and it pauses a producer as C{write} does.

        TLS encrypts, and so copies, the bytes at once.  Few bytes (see C{setZeroCopyThresholds}) are copied
        at once too, and their Deferred has fired already: Deferreds of several calls do not fire in order.

        @param region: from this connection's C{registerMemory}.  It may be closed at once; its memory stays
            until it is sent.
        @param length: bytes, from C{offset}; the rest of the region by default.
        @return: a Deferred that fires with L{None} when the memory may be reused, or fails if the connection
            has ended or ends before; add an errback.  It does not imply that the peer received the bytes.
            Cancelling it only discards its result.
        @raise TypeError: an argument has a wrong type.
        @raise MemoryAccessError: the range is outside of the region.
        """

    def sendUrgent(byte: bytes) -> None:
        """
        Send one urgent byte, in order with earlier writes.  The peer's host is notified at once that it is
        coming.  Registered memory that the peer has not read yet is then sent as ordinary data, so that the
        byte does not wait for the peer.  After the connection has ended this does nothing, as C{write}.

        @param byte: C{bytes} of length 1.
        @raise TypeError: it is not C{bytes}.
        @raise ValueError: it has another length; or the transport is TLS, or has moved to TCP, which that of
            an L{ISDPUrgentProtocol} does not.
        """

    def setZeroCopyThresholds(registered: int | None = None, plain: int | None = None) -> None:
        """
        Set the sizes from which on bytes are sent by zero copy.

        @param registered: for C{writeRegistered}, bytes; unchanged if L{None}.  The default is 512 KiB.
        @param plain: for one C{write}, bytes; never if L{None}, the default.
        @raise TypeError: one of them is not an integer; nothing has changed.
        """


class ISDPBufferedProtocol(IProtocol):
    """
    A stream protocol that provides its own receive buffers.

    The peer's zero copy goes there without a copy by the transport; other bytes are copied there.  A protocol
    declares this by C{@implementer(ISDPBufferedProtocol)}; methods alone do not count.  A protocol in a
    wrapper, such as TLS, is not asked: everything goes to C{dataReceived}.

    An exception from either method is logged and ends the connection, as one from C{dataReceived} does.
    """

    # Small buffers are not advertised in SinkAvail: the exchange costs more than the copy it saves.
    def getBuffer() -> tuple[IRDMARegion, int, int] | None:
        """
        Provide the next receive buffer.  It is called several times before anything arrives, and the buffers
        are filled in that order.  The peer does not write to a buffer of less than 65536 bytes; data is read
        into it.

        @return: a tuple: a writable region of the transport's C{registerMemory}, an offset and a length, more
            than 0.  The bytes are the transport's until C{bufferFilled}, so each range is provided once.
            L{None} sends the next bytes to C{dataReceived}; it is called again for those after them.
        """

    def bufferFilled(region: IRDMARegion, offset: int, count: int) -> None:
        """
        Bytes were received.

        @param region: the region that C{getBuffer} returned, as is C{offset}.
        @param count: the number of bytes; the rest of the buffer is the protocol's again.  0 if it was not
            needed.  Buffers that are not returned before C{connectionLost} are the protocol's again then.
        """


class ISDPUrgentProtocol(IProtocol):
    """
    A stream protocol that receives urgent data out of band; for others it is an ordinary part of the stream.
    A protocol declares this by C{@implementer(ISDPUrgentProtocol)}.
    """

    def urgentDataReceived(byte: bytes) -> None:
        """
        An urgent byte arrived: at once, before unread data that was sent before it, also while the transport
        is paused.  C{byte} is C{bytes} of length 1.
        """


class IRDMARegion(Interface):
    """
    Registered memory; a context manager that closes it.
    """

    view: memoryview = Attribute("The bytes, a C{memoryview}; it can be written if the memory can.")
    address: int = Attribute("The name of the first byte, for the peer.")
    length: int = Attribute("Bytes.")
    remoteKey: int = Attribute("The key for the peer; 0 if the region grants it nothing.")
    closed: bool = Attribute("Whether C{close} was called, or the connection has ended.")

    def close() -> None:
        """
        Revoke all access, also that of C{grant}: from now on an access of the peer fails (C{REM_ACCESS_ERR}),
        and the connection with it (IBTA vol. 1 9.7.5.2).  The bytes stay, for holders of C{view}.  Harmless
        when repeated.
        """

    def __enter__() -> IRDMARegion:
        """
        @return: itself.
        """

    def __exit__(*reason: object) -> None:
        """
        Close it.
        """


class IRDMAWindow(Interface):
    """
    A part of registered memory that the peer has access to for a while; a context manager that revokes it.
    """

    address: int = Attribute("The name of the first byte, for the peer.")
    length: int = Attribute("Bytes.")
    remoteKey: int = Attribute("The key for the peer.")
    revoked: bool = Attribute("Whether C{revoke} was called, or the region closed.")

    def revoke() -> None:
        """
        Revoke the access: from now on an access of the peer with this key fails (C{REM_ACCESS_ERR}), and the
        connection with it.  The region and its other windows are unaffected.  Harmless when
        repeated.
        """

    def __enter__() -> IRDMAWindow:
        """
        @return: itself.
        """

    def __exit__(*reason: object) -> None:
        """
        Revoke it.
        """


class IRDMAProtocol(IProtocol):
    """
    A protocol that receives messages as they are.

    A protocol declares this by C{@implementer(IRDMAProtocol)}; others get each message by
    C{dataReceived(bytes)}, and no notice of writes to memory.
    """

    def messageReceived(view: memoryview) -> None:
        """
        A message arrived.

        @param view: a read-only C{memoryview} of a copy, which may be kept.  C{transport.immediate} is its
            immediate data.
        """

    def remoteMemoryWritten(immediate: int, length: int) -> None:
        """
        The peer has written to memory that is registered here, by RDMA WRITE with immediate data.

        @param immediate: the immediate data, 32 bits.
        @param length: bytes written.
        """


# Linux net/rds (rds(7), rds-rdma(7)); over an HCA it interoperates with Linux ib_cm.c of net/rds, over TCP
# with tcp.c.
class IReactorRDS(Interface):
    """
    A reactor with reliable datagrams.
    """

    def listenRDS(
        port: int,
        protocol: DatagramProtocol,
        interface: str = "",
        maxPacketSize: int = 1048576,
        device: str | None = None,
    ) -> IListeningPort:
        """
        Open an RDS socket.

        @param port: from 2; 0 for any free port.
        @param protocol: a C{DatagramProtocol}, which may provide L{IRDSProtocol}; its transport provides
            L{IRDSTransport}.
        @param interface: the address to bind; all addresses of the host by default, C{0.0.0.0} and C{::} for
            all of one IP version.
        @param maxPacketSize: the longest datagram, in bytes, at most 1048576; longer incoming ones are
            truncated.
        @param device: C{"tcp"} for RDS over TCP, where each process needs an address of its own; or an HCA's
            name; the host's default device by default.
        @return: an L{IListeningPort<twisted.internet.interfaces.IListeningPort>}.
        @raise ValueError: an argument is out of range.
        @raise CannotListenError: the port is unavailable.
        """


class IRDSTransport(Interface):
    """
    A socket for reliable datagrams.

    Each datagram arrives whole, once, and in the order of the calls for each destination, as long as both RDS
    instances live, however often the connection between them is lost; it is queued until the peer's host has
    it.  If the destination's port is not open it is dropped.
    """

    def write(datagram: bytes, addr: tuple[str, int] | None = None) -> Deferred[None] | None:
        """
        Send a datagram.

        A protocol made for UDP may ignore the return value.  A protocol that sends faster than its peers
        receive waits for the Deferred, or registers a producer, which is paused meanwhile.

        @param datagram: C{bytes}, which may be empty.
        @param addr: host, an IP address, and port; by default the argument of C{connect}.
        @return: L{None} if more can be written.  Else the datagram was accepted too, and a Deferred fires
            with L{None} when there is space: for this socket, or for the destination if that is congested.
            It never fails, and also fires when the socket is closed.
        @raise DatagramTooLongError: it is longer than C{maxPacketSize}.
        @raise SendBudgetError: the send budget is used up; the datagram was not accepted.
        @raise DestinationCongestedError: the same for one congested destination.
        @raise InvalidAddressError: the host is not an IP address, or has the wrong IP version.
        @raise NoRouteError: there is no route.
        @raise ResourceLimitError: there are too many paths to peers, and all are in use.
        """

    def connect(host: str, port: int) -> None:
        """
        Set the default destination.
        """

    def cancel(addr: tuple[str, int]) -> int:
        """
        Discard what is queued for a destination (C{RDS_CANCEL_SENT_TO}); what is in flight may arrive.

        @param addr: host and port.
        @return: the number of datagrams.
        """

    def ping(host: str) -> Deferred[float]:
        """
        Probe the peer's RDS instance.

        @param host: an IP address.
        @return: a Deferred of the round trip time in seconds; it fails with
            L{PeerGoneError<twisted_ib.errors.PeerGoneError>} if the peer stays unreachable.
        """

    def counters() -> dict[str, int]:
        """
        @return: the counters of all sockets of the process on this device: the kernel's names (C{rds-info
            -c}), and ours (L{twisted_ib.rds.paths.network}).
        """

    def registerProducer(producer: IProducer, streaming: bool) -> None:
        """
        See L{IConsumer<twisted.internet.interfaces.IConsumer>}.
        """

    def unregisterProducer() -> None:
        """
        See L{IConsumer<twisted.internet.interfaces.IConsumer>}.
        """

    def pauseProducing() -> None:
        """
        Stop receiving: once the receive budget is used up, peers are notified that the port is congested.
        """

    def resumeProducing() -> None:
        """
        Receive again.
        """

    def getHost() -> IAddress:
        """
        @return: the bound address.
        """

    def stopListening() -> Deferred[None] | None:
        """
        Close the socket when what was written has arrived, or after a timeout; return a Deferred that fires
        then.
        """


# Linux include/uapi/linux/rds.h: RDS_CMSG_RDMA_ARGS, RDS_CMSG_RDMA_MAP, RDS_CMSG_ATOMIC_FADD and their kin.
class IRDSMemoryTransport(Interface):
    """
    RDMA between RDS sockets on an HCA; over TCP each call raises
    L{RDSUnsupportedError<twisted_ib.errors.RDSUnsupportedError>}.

    A cookie names memory: its holder may access the memory, from any process that RDS reaches.  An operation
    is done before its datagram is delivered; C{datagram=None} sends none.  The Deferred of an operation fails
    with L{RDSOperationError<twisted_ib.errors.RDSOperationError>}, whose C{statusName} is
    C{RDS_RDMA_REMOTE_ERROR} (access refused), C{RDS_RDMA_DROPPED} (the connection was lost, perhaps after the
    operation was done; its datagram is dropped too, and operations are never repeated), C{RDS_RDMA_CANCELED}
    or C{RDS_RDMA_OTHER_ERROR}.  A refused operation costs the connection, which is made again.
    """

    def registerMemory(sizeOrBuffer: Any, writable: bool = True, useOnce: bool = False) -> Any:
        """
        Register memory for peers.

        @param sizeOrBuffer: a number of bytes, or a buffer.
        @param writable: whether peers may also write it.
        @param useOnce: free it with the first datagram to this socket after an operation on it.
        @return: an L{RDSMemory<twisted_ib.rds.paths.rdmaoperations.RDSMemory>}: C{cookie}, C{view},
            C{length}.
        @raise MemoryRegionError: it cannot be registered.
        @raise ResourceLimitError: there is too much.
        """

    def freeMemory(memoryOrCookie: Any, invalidate: bool = True) -> bool:
        """
        Revoke the access; memory is freed with its socket at the latest.

        @param invalidate: the kernel's flag; here the cookie is invalid at once in any case.
        @return: whether it was registered with this socket.
        """

    def writeWithCookie(
        datagram: bytes, cookie: int, addr: tuple[str, int] | None = None
    ) -> Deferred[None] | None:
        """
        Send a datagram with a cookie: see L{IRDSCookieProtocol}.
        """

    def rdmaWrite(
        cookie: int,
        data: Any,
        addr: tuple[str, int] | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        localOffset: int = 0,
        length: int | None = None,
        fence: bool = False,
    ) -> Deferred[None]:
        """
        Write to the peer's memory, then send a datagram.

        @param data: bytes-like, or the result of C{registerMemory}.
        @param offset: in the peer's memory; C{localOffset} and C{length} (bytes; L{None} for the rest) are
            those of C{data}.
        @param fence: whether to wait for earlier READs and atomics.
        @return: a Deferred of L{None}.
        @raise SendBudgetError: too many operations are outstanding.
        """

    def rdmaRead(
        cookie: int,
        length: int,
        addr: tuple[str, int] | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        memory: Any = None,
        localOffset: int = 0,
        fence: bool = False,
    ) -> Deferred[Any]:
        """
        Read the peer's memory, then send a datagram.

        @param memory: writable memory of C{registerMemory} to read into; L{None} for new bytes.
        @return: a Deferred of the bytes; of L{None} with C{memory}.
        @raise SendBudgetError: too many operations are outstanding.
        """

    def fetchAdd(
        cookie: int,
        add: int,
        addr: tuple[str, int] | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        mask: int = 0,
    ) -> Deferred[int]:
        """
        Atomically add to 64 bits of the peer's memory, in its host's byte order.

        @param mask: the highest bit of each of several fields, which are added separately.
        @return: a Deferred of the previous value.
        """

    def compareAndSwap(
        cookie: int,
        compare: int,
        swap: int,
        addr: tuple[str, int] | None = None,
        offset: int = 0,
        datagram: bytes | None = b"",
        compareMask: int = ...,
        swapMask: int = ...,
    ) -> Deferred[int]:
        """
        Atomically replace 64 bits of the peer's memory if they equal C{compare}.

        @param compareMask: the bits to compare, as is C{swapMask} to replace; all by default.
        @return: a Deferred of the previous value.
        """


class IRDSCookieProtocol(Interface):
    """
    A datagram protocol that receives cookies; declared by C{@implementer(IRDSCookieProtocol)}.
    """

    def datagramWithCookieReceived(datagram: bytes, addr: tuple[str, int], cookie: int) -> None:
        """
        Called instead of C{datagramReceived} for a datagram with a cookie.
        """


class IRDSProtocol(Interface):
    """
    A datagram protocol with notices of congestion and loss; declared by C{@implementer(IRDSProtocol)}.
    """

    def destinationCongested(addr: tuple[str, int]) -> None:
        """
        Datagrams to a destination (host, port) are queued from now on, as its receive buffer is full.
        """

    def destinationCleared(addr: tuple[str, int]) -> None:
        """
        The queue to the destination (host, port) has been sent.
        """

    def peerGone(host: str, reason: Exception) -> None:
        """
        A peer is unreachable, and datagrams for it are queued.  Retries continue as long as they are;
        C{cancel} discards them.
        """
