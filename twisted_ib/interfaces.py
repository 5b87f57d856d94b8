"""
Interfaces of twisted_ib that are made for Twisted.
"""

from __future__ import annotations

from twisted.internet.interfaces import IProtocol, ITransport
from zope.interface import Attribute, Interface


class IReactorCompletionChannels(Interface):
    """
    A reactor that looks at devices by itself, between its other work, and not
    only when their descriptors are readable.
    """

    def addChannel(channel):  # type: ignore[no-untyped-def]
        """
        Look at the device of L{twisted_ib.internet.channel.DeviceChannel} from now on.

        @param channel: The channel of the device in this reactor.
        """

    def removeChannel(channel):  # type: ignore[no-untyped-def]
        """
        Look at it no more.

        @param channel: What C{addChannel} was given.
        """

    def watchChannel(channel):  # type: ignore[no-untyped-def]
        """
        Have its C{doRead} called when the device's descriptor is readable, also while it is not
        looked at.

        @param channel: The channel.
        """

    def unwatchChannel(channel):  # type: ignore[no-untyped-def]
        """
        Do so no more.

        @param channel: What C{watchChannel} was given.
        """


class IReactorRDMA(Interface):
    """
    A reactor with messages and RDMA beside its streams.
    """

    def listenRDMA(  # type: ignore[no-untyped-def]
        port, factory, interface="", backlog=50, device=None, privateData=b"", maxMessageSize=65536
    ):
        """
        Listen on a port of the RDMA-CM's port space TCP (C{RDMA_PS_TCP}).

        @param port: The port; 0 for any that is free.
        @param factory: Makes the protocols, which may provide L{IRDMAProtocol}; their
            transports provide L{IRDMATransport}.
        @param interface: The address to bind; all IPv4 addresses by default.
        @param backlog: How many requests wait while the port does not accept.
        @param device: The HCA's name; the host's default by default.
        @param privateData: What each peer is told with the acceptance (REP), at most 196 bytes.
        @param maxMessageSize: The longest message, in bytes, each way; the peer is not asked.
        @return: An L{IListeningPort<twisted.internet.interfaces.IListeningPort>}.
        @raise ValueError: C{port}, C{privateData} or C{maxMessageSize} makes no sense.
        @raise CannotListenError: The port cannot be had.
        """

    def connectRDMA(  # type: ignore[no-untyped-def]
        host,
        port,
        factory,
        timeout=30,
        bindAddress=None,
        device=None,
        privateData=b"",
        maxMessageSize=65536,
    ):
        """
        Connect to such a port.

        @param host: The peer's address or name.
        @param port: The peer's port.
        @param factory: Makes the protocol and hears of failure and loss.
        @param timeout: The seconds to wait for the connection; L{None} for as long as it takes.
        @param bindAddress: The local host and port to connect from.
        @param device: The HCA's name; the host's default by default.
        @param privateData: What the peer is told with the request (REQ), at most 56 bytes.
        @param maxMessageSize: The longest message, in bytes, each way; the peer is not asked.
        @return: An L{IConnector<twisted.internet.interfaces.IConnector>}.
        @raise ValueError: an argument makes no sense.
        """


class IRDMATransport(ITransport):
    """
    A connection that carries messages, and reads and writes the peer's memory.

    Each C{write} is one message: it arrives whole, or the connection is lost.  Messages and
    requests begin in the order of the calls.  What the peer cannot take yet waits (the peer
    answers RNR, receiver not ready, and is asked again for as long as it takes); register a
    producer to be told.

    C{write(data)} sends one message without a report.  The calls that return a Deferred fire it
    when the peer has done what was asked, or fail it with
    L{WorkCompletionError<twisted_ib.errors.WorkCompletionError>}, which has the status of the
    work completion (IBTA vol. 1 11.6.2); after most of these the connection is lost, and all
    others fail with C{WR_FLUSH_ERR}.  To cancel one is to forget its result; what has left can
    not be called back.

    An argument that cannot be raises at the call, and nothing is sent: C{TypeError} if it is of
    the wrong kind, else C{ValueError}, L{QueuePairError<twisted_ib.errors.QueuePairError>} (a
    number that has no room on the wire) or what the call says.

    Once the connection has ended C{write} does nothing, as with TCP; what returns a Deferred
    fails it with C{WR_FLUSH_ERR}; C{registerMemory} and C{grant} raise.

    All calls belong to the reactor's thread and raise
    L{WrongThreadError<twisted_ib.errors.WrongThreadError>} in another.
    """

    maxMessageSize = Attribute("The longest message, in bytes, each way.")
    privateData = Attribute("What this end said in its REQ or REP: C{bytes}.")
    peerPrivateData = Attribute(
        "What the peer said in its REQ (56 bytes) or REP (196 bytes), with the zeros that the"
        " message was filled with: the wire has no length for it (IBTA vol. 1 12.6)."
    )
    immediate = Attribute(
        "The immediate data of the message that is being delivered, an integer of 32 bits, or"
        " L{None} if it has none."
    )

    def send(data, immediate=None):  # type: ignore[no-untyped-def]
        """
        Send one message.

        @param data: C{bytes}, at most C{maxMessageSize}; may be empty.
        @param immediate: 32 bits that come with it.
        @return: A Deferred that fires with L{None} when the peer has taken the message.
        @raise MessageTooLongError: C{data} is too long; nothing was sent.
        """

    def sendRegistered(region, offset=0, length=None):  # type: ignore[no-untyped-def]
        """
        Send a part of registered memory as one message, without a copy here.  It must not
        change until the peer has taken it.

        @param region: What C{registerMemory} gave.
        @param offset: Of the first byte in it.
        @param length: How many bytes; the rest of the region by default.
        @return: A Deferred that fires with L{None} when the peer has taken the message.
        @raise MessageTooLongError: it is too long; nothing was sent.
        @raise MemoryAccessError: the region has no such bytes.
        """

    def rdmaRead(length, remoteAddress, remoteKey, region=None, offset=0):  # type: ignore[no-untyped-def]
        """
        Read the peer's memory (RDMA READ, IBTA vol. 1 9.4.4).

        @param length: How many bytes.
        @param remoteAddress: The name of the first, from the peer.
        @param remoteKey: The key of the peer's region.
        @param region: Registered memory that the bytes go to, with C{LOCAL_WRITE}.
        @param offset: Where in it.
        @return: A Deferred that fires with the C{bytes}; with C{region}, with how many came.
        @raise MemoryAccessError: C{region} has no such bytes.
        """

    def rdmaWrite(  # type: ignore[no-untyped-def]
        data, remoteAddress, remoteKey, offset=0, length=None
    ):
        """
        Write to the peer's memory; the peer is not told (RDMA WRITE, IBTA vol. 1 9.4.3).

        @param data: C{bytes}, or a region of registered memory.
        @param remoteAddress: The name of the first byte to write, from the peer.
        @param remoteKey: The key of the peer's region.
        @param offset: Of the first byte in C{data}.
        @param length: How many bytes; the rest of C{data} by default.
        @return: A Deferred that fires with L{None} when they are written.
        @raise MemoryAccessError: C{data} has no such bytes.
        """

    def rdmaWriteWithImmediate(  # type: ignore[no-untyped-def]
        data, remoteAddress, remoteKey, immediate, offset=0, length=None
    ):
        """
        The same, and the peer is told: its protocol's C{remoteMemoryWritten} is called.

        @param immediate: 32 bits for it.
        """

    def compareAndSwap(remoteAddress, remoteKey, compare, swap):  # type: ignore[no-untyped-def]
        """
        Exchange 8 bytes of the peer's memory if they have a value, in one step (atomic
        CmpSwap, IBTA vol. 1 9.4.5).

        @param remoteAddress: Their name, from the peer; a multiple of 8.
        @param remoteKey: The key of the peer's region, which grants C{REMOTE_ATOMIC}.
        @param compare: The value that they must have, 64 bits.
        @param swap: The value that they get, 64 bits.
        @return: A Deferred that fires with the value that they had.
        """

    def fetchAdd(remoteAddress, remoteKey, add):  # type: ignore[no-untyped-def]
        """
        Add to 8 bytes of the peer's memory, in one step (atomic FetchAdd, IBTA vol. 1 9.4.5).

        @param remoteAddress: Their name, from the peer; a multiple of 8.
        @param remoteKey: The key of the peer's region, which grants C{REMOTE_ATOMIC}.
        @param add: What to add, modulo 2^64.
        @return: A Deferred that fires with the value that they had.
        """

    def registerMemory(sizeOrBuffer, access=None):  # type: ignore[no-untyped-def]
        """
        Register memory for this connection: of the peers, only this one can be let in.  Several
        connections may register one buffer.

        @param sizeOrBuffer: How many bytes of new memory, which a peer of this host maps and
            copies from once; or a buffer, which is used as it is.
        @param access: L{Access<twisted_ib.rdma.Access>} bits; by default it may be written
            here, if the buffer can be, and the peer gets no right at all.
        @return: An L{IRDMARegion}.  It is closed with the connection, if not before.
        @raise MemoryRegionError: it cannot be registered so.
        """

    def grant(region, access, offset=0, length=None):  # type: ignore[no-untyped-def]
        """
        Open a part of registered memory to the peer, through a memory window of type 2 (IBTA
        vol. 1 10.6.7.2), which can be revoked while the region stays.

        @param region: What C{registerMemory} of this connection gave, with C{MW_BIND}, and with
            C{LOCAL_WRITE} if the peer may write; the rights of the peer on it do not count.
        @param access: What the peer may: C{REMOTE_READ}, C{REMOTE_WRITE}, C{REMOTE_ATOMIC}; with
            C{ZERO_BASED} the name of the window's first byte is 0.
        @param offset: Of the first byte in the region.
        @param length: How many bytes, at least 1; the rest of the region by default.
        @return: An L{IRDMAWindow}.  It is revoked with the region, if not before.
        @raise MemoryAccessError: the region has no such bytes, or does not allow this.
        @raise ResourceLimitError: there are too many windows.
        """

    def abortConnection():  # type: ignore[no-untyped-def]
        """
        Drop what waits and end the connection at once; the peer sees it as lost.
        """


class ISDPTransport(ITransport):
    """
    A stream whose ends share memory: what an SDP connection can besides TCP's.  What comes to
    registered memory is for a protocol that provides L{ISDPBufferedProtocol}; urgent data for
    one that provides L{ISDPUrgentProtocol}.

    All calls belong to the reactor's thread and raise
    L{WrongThreadError<twisted_ib.errors.WrongThreadError>} in another.
    """

    def registerMemory(sizeOrBuffer, access=None):  # type: ignore[no-untyped-def]
        """
        Register memory for this connection: see L{IRDMATransport.registerMemory}.  The peer is
        let in for each transfer only, so that C{access} needs no remote bits.

        @return: An L{IRDMARegion}.
        @raise MemoryRegionError: it cannot be registered so.
        """

    def writeRegistered(region, offset=0, length=None):  # type: ignore[no-untyped-def]
        """
        Send a part of registered memory without a copy here, in the order of the calls of this
        and C{write}; several may wait.  It must not change until it is sent.  A peer of this
        host copies it once where it can map it, which is all of a region that
        C{registerMemory} made; of others it sees no more than is sent.
        C{loseConnection} waits for it, and a producer is paused by it as by C{write}.

        In TLS the bytes are encrypted, and so copied, at once.  Few bytes (see
        C{setZeroCopyThresholds}) are copied at once too, and their Deferred has fired: the
        Deferreds of several calls do not fire in their order.

        @param region: What C{registerMemory} of this connection gave.  It may be closed at
            once; its memory stays until it is sent.
        @param offset: Of the first byte in it.
        @param length: How many bytes; the rest of the region by default.
        @return: A Deferred that fires with L{None} when the memory may be used again, or fails
            with the reason if the connection ends before, or has ended; give it an errback.
            It says nothing of the peer, as C{write} does not.  To cancel it is to forget it.
        @raise TypeError: C{region} is no region, or a number is none.
        @raise MemoryAccessError: the region has no such bytes.
        """

    def sendUrgent(byte):  # type: ignore[no-untyped-def]
        """
        Send one urgent byte, in its place in the stream: behind what was written before.  The
        peer's machine is told at once that it comes.  Registered memory that the peer has not
        read yet is sent in the usual way then, so that the byte does not wait for the peer.
        Once the connection has ended this does nothing, as C{write}.

        @param byte: C{bytes} of length 1.
        @raise TypeError: it is not C{bytes}.
        @raise ValueError: it has another length; or this is TLS.
        """

    def setZeroCopyThresholds(registered=None, plain=None):  # type: ignore[no-untyped-def]
        """
        Say from which size on bytes go by zero copy.

        @param registered: Of what C{writeRegistered} is given, bytes; unchanged if L{None}.
            It is 512 KiB at first.
        @param plain: Of the data of one C{write}, bytes; never if L{None}, as at first.
        @raise TypeError: one of them is no integer; nothing has changed.
        """


class ISDPBufferedProtocol(IProtocol):
    """
    A protocol of a stream that says where its bytes shall go.

    The peer's zero copy comes there without a copy by the transport; other bytes are copied
    there.  A protocol says that it is one by C{@implementer(ISDPBufferedProtocol)}, whatever
    methods it has.  One in a wrapper, such as TLS, is not asked: all comes to C{dataReceived}.

    What either method raises is logged and ends the connection, as with C{dataReceived}.
    """

    def getBuffer():  # type: ignore[no-untyped-def]
        """
        Say where the next bytes shall go.  It is asked several times before anything comes,
        and the places are filled in that order.  A place of less than 65536 bytes is not
        written to by the peer, but read into.

        @return: A tuple: a region of the transport's C{registerMemory}, which may be written,
            an offset and a length, more than 0.  The bytes there are the transport's until
            C{bufferFilled}, so that each place is given once.  L{None} if the next bytes shall
            go to C{dataReceived}; it is asked again for those behind them.
        """

    def bufferFilled(region, offset, count):  # type: ignore[no-untyped-def]
        """
        Bytes have come.

        @param region: The region that C{getBuffer} named.
        @param offset: Likewise.
        @param count: How many bytes are there; the rest of the place is the protocol's again.
            0 if it was not needed.  Places that are not given back before C{connectionLost}
            are the protocol's again then.
        """


class ISDPUrgentProtocol(IProtocol):
    """
    A protocol of a stream that takes urgent data out of it; for others it is a part of the
    stream like any.  A protocol says that it is one by C{@implementer(ISDPUrgentProtocol)}.
    """

    def urgentDataReceived(byte):  # type: ignore[no-untyped-def]
        """
        An urgent byte came: at once, before what was sent before it and is not read, also
        while the transport is paused.

        @param byte: C{bytes} of length 1.
        """


class IRDMARegion(Interface):
    """
    Registered memory; a context manager that closes it.
    """

    view = Attribute("The bytes, a C{memoryview}; it can be written if the memory can.")
    address = Attribute("The name of the first byte, for the peer.")
    length = Attribute("Bytes.")
    remoteKey = Attribute("The key for the peer; 0 if the region grants it nothing.")
    closed = Attribute("Whether C{close} was called, or the connection has ended.")

    def close():  # type: ignore[no-untyped-def]
        """
        Take the rights back, also those that C{grant} gave on it: from now on an access of the
        peer fails (C{REM_ACCESS_ERR}), and the connection with it (IBTA vol. 1 9.7.5.2).  The
        bytes stay, for whoever has C{view}.
        """


class IRDMAWindow(Interface):
    """
    A part of registered memory that the peer may use for a while; a context manager that
    revokes it.
    """

    address = Attribute("The name of the first byte, for the peer.")
    length = Attribute("Bytes.")
    remoteKey = Attribute("The key for the peer.")
    revoked = Attribute("Whether C{revoke} was called, or the region closed.")

    def revoke():  # type: ignore[no-untyped-def]
        """
        Take the rights back: from now on an access of the peer with this key fails
        (C{REM_ACCESS_ERR}), and the connection with it.  The region, and other windows on it,
        stay as they are.
        """


class IRDMAProtocol(IProtocol):
    """
    A protocol that takes messages as they are.

    One that does not say so, by C{@implementer(IRDMAProtocol)}, gets each message by
    C{dataReceived(bytes)}, whatever methods it has, and is not told of what the peer has written.
    """

    def messageReceived(view):  # type: ignore[no-untyped-def]
        """
        A message came.

        @param view: A read-only C{memoryview} of its bytes, which are copied already: it may
            be kept.  C{transport.immediate} is what came with it.
        """

    def remoteMemoryWritten(immediate, length):  # type: ignore[no-untyped-def]
        """
        The peer has written to memory that is registered here, by WRITE with immediate.

        @param immediate: Its 32 bits.
        @param length: How many bytes it wrote.
        """


class IReactorRDS(Interface):
    """
    A reactor with reliable datagrams.
    """

    def listenRDS(  # type: ignore[no-untyped-def]
        port, protocol, interface="", maxPacketSize=1048576, device=None
    ):
        """
        Open a socket of RDS.

        @param port: The port, from 2; 0 for any that is free.
        @param protocol: A C{DatagramProtocol}, which may provide L{IRDSProtocol}; its transport
            provides L{IRDSTransport}.
        @param interface: The address to bind; each address of the host by default, C{0.0.0.0} and
            C{::} for those of one kind.
        @param maxPacketSize: The longest datagram, in bytes, at most 1048576; what comes is cut
            off there.
        @param device: C{"tcp"} for RDS over TCP, where each process needs an address of its own;
            or an HCA's name; the host's default by default.
        @return: An L{IListeningPort<twisted.internet.interfaces.IListeningPort>}.
        @raise ValueError: an argument makes no sense.
        @raise CannotListenError: The port cannot be had.
        """


class IRDSTransport(Interface):
    """
    A socket of reliable datagrams.

    What is written arrives whole, once, and in the order of the calls for each destination, as
    long as both instances of RDS live, however often the connection beneath is lost; it waits
    until the peer's host has it.  If nobody has the destination's port there it is dropped.
    """

    def write(datagram, addr=None):  # type: ignore[no-untyped-def]
        """
        Send a datagram.

        A protocol made for UDP may ignore what this returns.  One that sends more than the peers
        take either waits for the Deferred, or registers a producer, which is paused meanwhile.

        @param datagram: C{bytes}, which may be empty.
        @param addr: Host, an IP address, and port; or what C{connect} was given.
        @return: L{None} if more can be written.  Else the datagram was taken too, and a Deferred
            fires with L{None} when there is room: for this socket, or, if the destination is
            congested, for that destination.  It never fails, and also fires when the socket is closed.
        @raise DatagramTooLongError: it is longer than C{maxPacketSize}.
        @raise SendBudgetError: as much waits as may; nothing was taken.
        @raise DestinationCongestedError: the same for a congested destination alone.
        @raise InvalidAddressError: the host is not an IP address, or not of the socket's kind.
        @raise NoRouteError: nothing leads there.
        @raise ResourceLimitError: there are too many paths to peers, and all are in use.
        """

    def connect(host, port):  # type: ignore[no-untyped-def]
        """
        Say where datagrams go that are written without an address.
        """

    def cancel(addr):  # type: ignore[no-untyped-def]
        """
        Forget what waits for a destination (C{RDS_CANCEL_SENT_TO}); what is on its way may arrive.

        @param addr: Host and port.
        @return: How many datagrams it was.
        """

    def ping(host):  # type: ignore[no-untyped-def]
        """
        Ask the peer's RDS for a sign of life.

        @param host: An IP address.
        @return: A Deferred of the seconds until it came; it fails with
            L{PeerGoneError<twisted_ib.errors.PeerGoneError>} if the peer cannot be reached for long.
        """

    def counters():  # type: ignore[no-untyped-def]
        """
        @return: What all sockets of the process on this device have counted: the kernel's names
            (C{rds-info -c}), and ours (L{twisted_ib.rds.protocol.counters}).
        """

    def registerProducer(producer, streaming):  # type: ignore[no-untyped-def]
        """
        See L{IConsumer<twisted.internet.interfaces.IConsumer>}.
        """

    def unregisterProducer():  # type: ignore[no-untyped-def]
        """
        See L{IConsumer<twisted.internet.interfaces.IConsumer>}.
        """

    def pauseProducing():  # type: ignore[no-untyped-def]
        """
        Receive nothing for the moment: when much waits the peers are told that the port is congested.
        """

    def resumeProducing():  # type: ignore[no-untyped-def]
        """
        Receive again.
        """

    def getHost():  # type: ignore[no-untyped-def]
        """
        @return: The address that is bound.
        """

    def stopListening():  # type: ignore[no-untyped-def]
        """
        Close the socket, when what was written has arrived, or after a while.

        @return: A Deferred that fires then.
        """


class IRDSMemoryTransport(Interface):
    """
    RDMA between sockets of RDS on an HCA; over TCP each of these raises
    L{RDSUnsupportedError<twisted_ib.errors.RDSUnsupportedError>}.

    A cookie names memory: who has it may use the memory, from any process that RDS reaches.  An
    operation is done before its datagram is delivered; C{datagram=None} has it done without one.
    The Deferred of an operation fails with
    L{RDSOperationError<twisted_ib.errors.RDSOperationError>}, whose C{statusName} is
    C{RDS_RDMA_REMOTE_ERROR} (the peer gives no such access), C{RDS_RDMA_DROPPED} (the connection was
    lost, perhaps after it was done; its datagram is dropped too, and operations are never repeated),
    C{RDS_RDMA_CANCELED} or C{RDS_RDMA_OTHER_ERROR}.  A refused operation costs the connection, which
    comes again.
    """

    def registerMemory(sizeOrBuffer, writable=True, useOnce=False):  # type: ignore[no-untyped-def]
        """
        Let peers use memory.

        @param sizeOrBuffer: A number of bytes, or a buffer.
        @param writable: Whether they may write it, and not only read it.
        @param useOnce: Whether the first datagram to this socket that follows an operation on it
            frees it.
        @return: An L{RDSMemory<twisted_ib.rds.paths.rdmaoperations.RDSMemory>}: C{cookie}, C{view},
            C{length}.
        @raise MemoryRegionError: it cannot be.
        @raise ResourceLimitError: there is too much.
        """

    def freeMemory(memoryOrCookie, invalidate=True):  # type: ignore[no-untyped-def]
        """
        Take the rights back; memory is freed with its socket too.

        @param invalidate: The kernel's flag; here the cookie opens nothing any more in any case.
        @return: Whether it was registered with this socket.
        """

    def writeWithCookie(datagram, cookie, addr=None):  # type: ignore[no-untyped-def]
        """
        C{write}, and give the receiver a cookie: see L{IRDSCookieProtocol}.
        """

    def rdmaWrite(  # type: ignore[no-untyped-def]
        cookie, data, addr=None, offset=0, datagram=b"", localOffset=0, length=None, fence=False
    ):
        """
        Write to the peer's memory, then send a datagram.

        @param data: Bytes-like, or what C{registerMemory} gave.
        @param offset: Of the first byte in the peer's memory.
        @param localOffset: Of the first byte in C{data}.
        @param length: How many bytes; L{None} for the rest.
        @param fence: Whether it waits for the READs and atomics before it.
        @return: A Deferred of L{None}.
        @raise SendBudgetError: too many operations are on their way.
        """

    def rdmaRead(  # type: ignore[no-untyped-def]
        cookie, length, addr=None, offset=0, datagram=b"", memory=None, localOffset=0, fence=False
    ):
        """
        Read the peer's memory, then send a datagram.

        @param memory: Where to, what C{registerMemory} gave with C{writable}; L{None} for new bytes.
        @return: A Deferred of the bytes; of L{None} with C{memory}.
        @raise SendBudgetError: too many operations are on their way.
        """

    def fetchAdd(cookie, add, addr=None, offset=0, datagram=b"", mask=0):  # type: ignore[no-untyped-def]
        """
        Add to 64 bits of the peer's memory, in the byte order of its host, at once.

        @param mask: The highest bit of each of several fields, which are added by themselves.
        @return: A Deferred of what was there before.
        """

    def compareAndSwap(  # type: ignore[no-untyped-def]
        cookie, compare, swap, addr=None, offset=0, datagram=b"", compareMask=..., swapMask=...
    ):
        """
        Replace 64 bits of the peer's memory, if they are what is expected, at once.

        @param compareMask: The bits that are compared; all by default.
        @param swapMask: The bits that are replaced; all by default.
        @return: A Deferred of what was there before.
        """


class IRDSCookieProtocol(Interface):
    """
    A datagram protocol that takes cookies; it says so by C{@implementer(IRDSCookieProtocol)}.
    """

    def datagramWithCookieReceived(datagram, addr, cookie):  # type: ignore[no-untyped-def]
        """
        In place of C{datagramReceived}, of a datagram that brings a cookie.
        """


class IRDSProtocol(Interface):
    """
    A datagram protocol that wants to know more; it says so by C{@implementer(IRDSProtocol)}.
    """

    def destinationCongested(addr):  # type: ignore[no-untyped-def]
        """
        What is written to a destination waits from now on, as nobody reads there.

        @param addr: Host and port.
        """

    def destinationCleared(addr):  # type: ignore[no-untyped-def]
        """
        It has been sent.

        @param addr: Host and port.
        """

    def peerGone(host, reason):  # type: ignore[no-untyped-def]
        """
        A peer that something waits for cannot be reached.  It is tried again as long as
        something waits: C{cancel} makes an end.

        @param host: Its address.
        @param reason: An exception.
        """
