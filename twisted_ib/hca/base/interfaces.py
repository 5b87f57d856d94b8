"""
The seams of the HCA: between a device and its fabric, and its users.

A device uses a fabric through L{IFabric}; the L{IPath} that a fabric gives for each peer is the other half of
the seam.
"""

from __future__ import annotations

from zope.interface import Attribute, Interface


class IFabricProgress(Interface):
    """
    How a fabric is driven: by polling, and by a descriptor that wakes whoever sleeps.
    """

    patient = Attribute("Whether the caller polls C{progress} until nothing comes; set by the caller.")
    hot = Attribute("What is worth polling, a tuple; empty if nothing can arrive while this thread polls.")
    answerSeconds = Attribute("How long polling for an answer pays, even if the peer has slept; seconds.")
    rung = Attribute("How often a peer was woken.")
    sleeps = Attribute("How often this side went to sleep.")

    def octets() -> tuple[int, int] | None:
        """
        @return: the octets sent and received, with the records' headers; L{None} if not counted.
        """

    def progress(budget):  # type: ignore[no-untyped-def]
        """
        Process what has arrived.

        @param budget: records per path at most.
        @return: the number of records.
        """

    def ringBells():  # type: ignore[no-untyped-def]
        """
        Wake the peers that something was published for; the batch ends.
        """

    def pending():  # type: ignore[no-untyped-def]
        """
        @return: whether C{progress} has something to do.
        """

    # Arming and the last look are one step: work that arrives between them would not wake anyone.
    def arm():  # type: ignore[no-untyped-def]
        """
        Ask to be woken through the descriptor from now on.

        @return: False if there is work after all.
        """

    def look():  # type: ignore[no-untyped-def]
        """
        Find the paths that have work, after waking.

        @return: whether any path is polled in each turn now.
        """

    def attend():  # type: ignore[no-untyped-def]
        """
        Serve the descriptors: incoming peers, handshakes, deaths.
        """

    def fileno():  # type: ignore[no-untyped-def]
        """
        @return: a descriptor that is readable when C{attend} has work.
        """

    def signal():  # type: ignore[no-untyped-def]
        """
        Make C{fileno} readable: there is work from outside of C{progress}.
        """

    # Edge-triggered eventfds that are never read save one system call for each wake-up.
    def registerWith(poller):  # type: ignore[no-untyped-def]
        """
        Register the doorbells with a reactor's C{select.epoll}, where they are never read, instead of behind
        C{fileno}.
        """

    def deadline():  # type: ignore[no-untyped-def]
        """
        @return: when C{tick} should be called, or L{None}.
        """

    def tick(now):  # type: ignore[no-untyped-def]
        """
        Run expired timers; C{now} is the device's time, seconds.
        """

    def unsent():  # type: ignore[no-untyped-def]
        """
        @return: whether connection management messages wait for space on any path.
        """


class IDirectory(Interface):
    """
    The services of this HCA, as its peers find them, and the way to those of its peers.
    """

    # The equivalent of a listening CM service on a port (IBTA vol. 1 12.9; Linux cm.c, ib_cm_listen); here it
    # also rendezvouses the processes of a host.
    def publish(serviceID, address, inode=0):  # type: ignore[no-untyped-def]
        """
        Let other HCAs find this one for a service at an address.

        @param inode: the inode of the same server's TCP socket there, or 0: clients of that socket may come
            here.
        @raise ServiceInUseError: another HCA has it.
        @raise NoRouteError: this fabric does not serve the address.
        """

    def publishAny(prefix, address):  # type: ignore[no-untyped-def]
        """
        Publish a service on any free port.

        @return: the port; the service id is C{prefix + port}.
        """

    def withdraw(serviceID, address):  # type: ignore[no-untyped-def]
        """
        Undo C{publish} or C{publishAny}.
        """

    # In place of the path record query to a subnet administrator, which RoCE does not have
    # (IBTA vol. 1 annex A17).
    def resolve(serviceID, address, user):  # type: ignore[no-untyped-def]
        """
        Resolve the path to the HCA that serves a service at an address.

        @param user: gets C{pathReady(path)}, perhaps before this returns, or C{connectFailed(error)} later.
        @return: an object with C{cancel()}.
        @raise NoRouteError: this fabric does not reach the address.
        @raise NoListenerError: no HCA serves it.
        """

    # IBTA vol. 1 10.5: each HCA joins for all its queue pairs; they are attached by the device.
    def join(group):  # type: ignore[no-untyped-def]
        """
        Publish this HCA as a member of a multicast group.

        @param group: the MGID, 128 bits.
        @raise HCAError: it cannot be published.
        """

    def leave(group):  # type: ignore[no-untyped-def]
        """
        Undo C{join}; harmless if this HCA is not a member.
        """


class IHostDirectory(IDirectory):
    """
    The directory of one host: a peer is a process, named by the GUID of its HCA (L{Peers.PROCESSES
    <twisted_ib.hca.base.traits.Peers>}).
    """

    def serving(serviceID, address):  # type: ignore[no-untyped-def]
        """
        Find the HCAs that serve a service, without dialling them.

        @return: their GUIDs in order of preference; some may be dead.
        @raise ValueError: C{address} is not an IP address.
        """

    def reach(guid, user):  # type: ignore[no-untyped-def]
        """
        Resolve the path to the HCA of a GUID: one that this side has dialled, or a new one.  A path to this
        HCA itself has its other end as C{twin}.

        @param user: as for C{resolve}.
        @return: an object with C{cancel()}.
        @raise NoListenerError: there is no such HCA.
        """

    # A process may claim any GUID in its handshake; the kernel's credentials of the socket prove it.
    def proves(path, guid):  # type: ignore[no-untyped-def]
        """
        Verify that the HCA at the other end of a path has a GUID.  Its own claim is no proof.

        @return: L{None} if that cannot be verified now.
        """

    def members(group):  # type: ignore[no-untyped-def]
        """
        @return: the GUIDs of a multicast group's HCAs, perhaps with this one; immutable.  The same object
            while nothing has changed.
        """


class IAddressDirectory(IDirectory):
    """
    The directory of addresses: a peer is an IP address, which is a GID as well (L{Peers.ADDRESSES
    <twisted_ib.hca.base.traits.Peers>}).
    """

    address = Attribute("The HCA's own IP address, as text without a scope.")

    def reachGID(gid, user):  # type: ignore[no-untyped-def]
        """
        Find the path to a GID, of a peer or of a multicast group.

        @param user: as for C{resolve}.
        @return: an object with C{cancel()}.
        @raise NoRouteError: it is no IP address that can be reached from here.
        """

    # Such a device has no entry in the host's run directory; the socket at which commands query it is served
    # with the fabric.
    def watch(fd, call):  # type: ignore[no-untyped-def]
        """
        Have C{attend} call C{call} while a descriptor is readable.
        """


class IFabricConnections(Interface):
    """
    The paths to peers, and what they have in common.
    """

    # Implementations: shared memory between processes, loopback within a thread, and RoCEv2 packets
    # (IBTA vol. 1 annex A17).
    name = Attribute("The name of its row in L{twisted_ib.hca.device.registry}.")
    traits = Attribute("Facts of its kind, L{Traits<twisted_ib.hca.base.traits.Traits>}.")
    owner = Attribute("The device, an L{IFabricOwner}.")
    guid = Attribute("The device's GUID.")

    def count(name):  # type: ignore[no-untyped-def]
        """
        Add one to a counter of the device.
        """

    def paths():  # type: ignore[no-untyped-def]
        """
        @return: the paths to living peers.
        """

    def allocate(size):  # type: ignore[no-untyped-def]
        """
        Allocate C{size} bytes of memory that peers can map.

        @return: an object with C{map}, a buffer of at least that size, and C{close()}; L{None} if
            unsupported.
        """

    def trace(observer):  # type: ignore[no-untyped-def]
        """
        Have what this fabric sends and receives observed from now on.

        @param observer: an L{IFabricObserver<twisted_ib.hca.fabric.base.link.IFabricObserver>}.
        """

    def forked():  # type: ignore[no-untyped-def]
        """
        Make every use an error, in a forked child.
        """

    def close():  # type: ignore[no-untyped-def]
        """
        Withdraw and release everything.
        """


class IFabric(IFabricProgress, IDirectory, IFabricConnections):
    """
    A fabric carries operations from one HCA to others.  Its directory is an L{IHostDirectory} or an
    L{IAddressDirectory}, as its traits say.
    """


class IPacketFabric(IFabric, IAddressDirectory):
    """
    A fabric of packets.
    """

    pathMTU = Attribute("The most octets of a packet's payload: its link's.")
    packetsSent = Attribute("Packets sent.")
    packetsReceived = Attribute("Packets received, valid or not.")
    icrc = Attribute("The library that computes the CRC of packets: C{isal}, or the slower C{zlib}.")

    def pathMTUTo(address):  # type: ignore[no-untyped-def]
        """
        @return: see L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
        """


class IPeerPath(Interface):
    """
    The path to a peer's HCA: management, datagrams, and the paths of queue pairs.
    """

    fabric = Attribute("The fabric that it belongs to.")
    peer = Attribute(
        "The peer: its C{guid} and C{gid}; C{pid}, C{uid} and C{program} of its process, where the fabric is"
        " one of processes; its C{address}, where it has one."
    )
    alive = Attribute("Whether the peer can still be reached.")

    # IBTA vol. 1 9.6: HCAs compare a packet's source with the queue pair's peer.  Here a peer cannot even
    # name a queue pair that is bound to another path.
    def bind(queuePair, message=None):  # type: ignore[no-untyped-def]
        """
        Deliver what comes for a queue pair's number to its C{delivered} from now on.

        @param queuePair: has C{number}, C{remote}, C{type} and the attributes of its state.
        @param message: the peer's request or reply, if a connection is the reason.
        @return: the L{IPath} that the queue pair uses.
        """

    def unbind(queuePair):  # type: ignore[no-untyped-def]
        """
        Stop delivering to a queue pair; harmless if it is not bound.
        """

    def forget(number):  # type: ignore[no-untyped-def]
        """
        A queue pair's number is used anew, by a stream: what a requester was refused for it is no matter.
        """

    # The consumer's buffers are its own again when this returns: the medium has copied them.
    def post(word, header, payload, length):  # type: ignore[no-untyped-def]
        """
        Publish one record.

        @param word: its opcode, shifted by 24 bits, and the peer's queue pair number.
        @param header: bytes.
        @param payload: bytes-like, or a list of bytes-like objects.
        @param length: bytes in C{payload}.
        @return: False if the medium has no room now.
        """

    def position():  # type: ignore[no-untyped-def]
        """
        @return: the position in the medium after the last record published, which grows with each; 0 where
            nothing is acknowledged.
        """

    def wantSpace(waiter):  # type: ignore[no-untyped-def]
        """
        Have C{waiter.resume()} called once, when the medium has room again.
        """

    def wantNoSpace(waiter):  # type: ignore[no-untyped-def]
        """
        Remove a waiter; harmless if it does not wait.
        """

    def respond(word, record, partition):  # type: ignore[no-untyped-def]
        """
        Send the response to a management datagram.

        @param word: as for C{post}.
        @param record: GRH, DETH and MAD.
        @param partition: the request's P_Key; 0 if the medium has none.
        @return: False if the medium has no room now.
        """

    def sendManagement(attribute, body, transaction=0):  # type: ignore[no-untyped-def]
        """
        Send a connection management message, at once or when there is room.

        @param body: the message without its MAD header, 232 bytes.
        @param transaction: the transaction id, where a whole MAD is sent.
        """

    def unsent():  # type: ignore[no-untyped-def]
        """
        @return: how many connection management messages wait for room.
        """

    def prepareRequest(request):  # type: ignore[no-untyped-def]
        """
        Put into a request the parameters that a fabric of packets negotiates (PSN, path MTU).

        @param request: a L{ConnectRequest<twisted_ib.hca.connection.request.ConnectRequest>}, to be
            changed.
        """

    def prepareReply(reply, request):  # type: ignore[no-untyped-def]
        """
        Do the same for a reply.

        @param reply: a L{ConnectReply<twisted_ib.hca.connection.request.ConnectReply>}, to be
            changed.
        @param request: the request that it answers.
        @return: the parameters as a queue pair's C{proposal}, or L{None}.
        """


class IPath(IPeerPath):
    """
    The path that a bound queue pair uses.
    """

    way = Attribute("The L{IPeerPath} to its peer; all queue pairs of the peer share it.")
    scheduler = Attribute(
        "The place of the core's L{ResponseScheduler<twisted_ib.hca.services.responses.ResponseScheduler>};"
        " L{None} at first."
    )
    messageBytes = Attribute("The longest stream message that it carries well.")
    inPackets = Attribute("Whether only the refused packet is sent again, and not its whole message.")
    inSegments = Attribute(
        "Whether records become segments of DDP (RFC 5041): then each record of a SEND says how the message"
        " ends, as its last one does; and a WRITE may come between the records of a SEND."
    )
    retransmits = Attribute("Packets sent again; 0 where nothing is lost.")

    def modified(queuePair):  # type: ignore[no-untyped-def]
        """
        A bound queue pair has changed its state or attributes.
        """

    def postReserved(word, body, refusal):  # type: ignore[no-untyped-def]
        """
        Publish a small record that may use the reserve, so that refusals and ends get through when data is
        stuck.

        @param refusal: whether it may use the last part of the reserve too.
        @return: False if even the reserve has no room.
        """

    # One argument, so that this can be the bound append of a queue: it runs for each work request.
    def track(request):  # type: ignore[no-untyped-def]
        """
        Call C{requester.acknowledged(position)} when the peer has consumed everything before a position.

        @param request: position and requester; positions never decrease from one call to the next.
        """

    # IBTA vol. 1 9.6: HCAs drop a packet for a queue pair that does not exist, and the requester finds out by
    # its timeout.  A peer that is a living process refuses at once, but does not know who sent.
    def expect(requester):  # type: ignore[no-untyped-def]
        """
        A queue pair begins to send requests that it keeps: until it is unbound it gets what the peer refuses
        for want of a queue pair of the number C{requester.remote}.
        """


class ITwinPath(IPath):
    """
    A path of a fabric on which an HCA can reach itself by a path with two ends.
    """

    twin = Attribute("On a path from an HCA to itself the other end; else L{None}.")


class ISharedMemoryPath(IPath):
    """
    A path whose peer may map registered memory, so that records refer to it instead of carrying its bytes.
    """

    def offer(segment):  # type: ignore[no-untyped-def]
        """
        Let the peer map a segment of registered memory for reading.

        @param segment: one that the fabric's C{allocate} gave.
        @return: the number by which records refer to it, or 0 if the bytes must travel in the records.
        """

    def withdraw(segment):  # type: ignore[no-untyped-def]
        """
        Have the peer unmap a segment; harmless if it was not offered.
        """

    def offered(number):  # type: ignore[no-untyped-def]
        """
        @return: a view of the segment that the peer offered under a number, or L{None}.
        """


class IFabricOwner(Interface):
    """
    The device, as its fabric sees it.
    """

    wanted = Attribute(
        "L{None}, or called when something was published and nothing may follow that ends the batch."
    )
    queuePairs = Attribute("The queue pairs, by number.")
    partitions = Attribute("The L{PartitionTable<twisted_ib.hca.base.partition.PartitionTable>}.")

    # Between processes, and from the agent of its class: a MAD of 256 octets without its header of 24
    # (IBTA vol. 1 13.4.3).
    def managementReceived(path, attribute, buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A connection management message arrived: 232 bytes of C{buffer}.
        """

    def madReceived(path, number, source, buffer, start, stop, partition=0):  # type: ignore[no-untyped-def]
        """
        A datagram for queue pair 0 or 1 arrived, which should be a MAD of 256 octets.

        @param number: the queue pair, 0 only where there is one.
        @param source: the sender's queue pair.
        @param partition: the packet's P_Key; 0 if the medium has none.
        """

    # The GRH is the 40 octets that a UD receive has before its payload (IBTA vol. 1 9.8.3, 8.3).
    def datagramReceived(path, opcode, number, buffer, start, stop, partition=0):  # type: ignore[no-untyped-def]
        """
        A datagram arrived: GRH, DETH, payload.

        @param opcode: L{UD_SEND_ONLY<twisted_ib.hca.base.operation.UD_SEND_ONLY>} or the one with immediate
            data, perhaps solicited.
        @param number: the destination queue pair number.
        @param partition: the packet's P_Key; 0 if the medium has none, or its records have it.
        """

    def arrivedEarly(number, address, psn):  # type: ignore[no-untyped-def]
        """
        A connection's packet arrived, with this PSN, for the number of no queue pair.
        """

    def pathAccepted(path):  # type: ignore[no-untyped-def]
        """
        A path dialled by the peer is complete.  The peer's identity is only a claim.
        """

    def pathLost(path, reason):  # type: ignore[no-untyped-def]
        """
        A peer is gone.  Its queue pairs fail next.
        """

    def count(name):  # type: ignore[no-untyped-def]
        """
        Add one to a counter.
        """

    def warn(text):  # type: ignore[no-untyped-def]
        """
        Warn the operator of this process.
        """

    def describe():  # type: ignore[no-untyped-def]
        """
        @return: the answer to a query of this device: a dict for JSON.
        """

    def describeSockets():  # type: ignore[no-untyped-def]
        """
        @return: the answer to a query of listeners and connections: an iterator of dicts for JSON, made one
            by one; C{more} in each is whether another one follows.
        """


class IConsumer(Interface):
    """
    The user of a queue pair.  It may post from within any of these calls.
    """

    # No copy here: SDP parses the header in place and copies the data once, to where it belongs.
    def received(buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A message arrived.  C{buffer} is the medium's own: what is kept must be copied, as slicing does.
        """

    def resume():  # type: ignore[no-untyped-def]
        """
        The medium has accepted everything that was posted.
        """

    def failed(reason):  # type: ignore[no-untyped-def]
        """
        The queue pair is in ERR.
        """

    def forked():  # type: ignore[no-untyped-def]
        """
        This is a forked child, and the queue pair is the parent's: make every use a named error.
        """


class IDatagramConsumer(Interface):
    """
    The user of a UD queue pair without work requests: see
    L{InlineDatagrams<twisted_ib.hca.services.datagramconsumer.InlineDatagrams>}.  It may post from within any
    of these calls.
    """

    def datagramReceived(source, buffer, start, stop):  # type: ignore[no-untyped-def]
        """
        A datagram arrived.

        @param source: the L{DatagramSource<twisted_ib.hca.services.datagramconsumer.DatagramSource>}.
        @param buffer: bytes, the payload from C{start} to C{stop} behind the headers, the immediate the last.
        """

    def failed(reason):  # type: ignore[no-untyped-def]
        """
        The queue pair is in ERR.
        """

    def forked():  # type: ignore[no-untyped-def]
        """
        This is a forked child, and the queue pair is the parent's.
        """
