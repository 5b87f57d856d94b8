"""
The paths to a peer: that of its HCA, and that of a queue pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, Interface

from twisted_ib.hca.base.interfaces.roles import BoundQueuePair, Segment, Waiter

if TYPE_CHECKING:
    from twisted_ib.hca.connection.request import ConnectReply, ConnectRequest


class IPeerPath(Interface):
    """
    The path to a peer's HCA: management, datagrams, and the paths of queue pairs.
    """

    fabric: Any = Attribute("The fabric that it belongs to.")
    peer: Any = Attribute(
        "The peer: its C{guid} and C{gid}; C{pid}, C{uid} and C{program} of its process, where the fabric is"
        " one of processes; its C{address}, where it has one."
    )
    alive: bool = Attribute("Whether the peer can still be reached.")

    # IBTA vol. 1 9.6: HCAs compare a packet's source with the queue pair's peer.  Here a peer cannot even
    # name a queue pair that is bound to another path.
    def bind(queuePair: BoundQueuePair, message: Any = None) -> IPath:
        """
        Deliver what comes for a queue pair's number to its C{delivered} from now on.

        @param queuePair: has C{number}, C{remote}, C{type} and the attributes of its state.
        @param message: the peer's request or reply, if a connection is the reason.
        @return: the L{IPath} that the queue pair uses.
        """

    def unbind(queuePair: BoundQueuePair) -> None:
        """
        Stop delivering to a queue pair; harmless if it is not bound.
        """

    def forget(number: int) -> None:
        """
        A queue pair's number is used anew, by a stream: what a requester was refused for it is no matter.
        """

    # The consumer's buffers are its own again when this returns: the medium has copied them.
    def post(word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        Publish one record.

        @param word: its opcode, shifted by 24 bits, and the peer's queue pair number.
        @param header: bytes.
        @param payload: bytes-like, or a list of bytes-like objects.
        @param length: bytes in C{payload}.
        @return: False if the medium has no room now.
        """

    def position() -> int:
        """
        @return: the position in the medium after the last record published, which grows with each; 0 where
            nothing is acknowledged.
        """

    def wantSpace(waiter: Waiter) -> None:
        """
        Have C{waiter.resume()} called once, when the medium has room again.
        """

    def wantNoSpace(waiter: Waiter) -> None:
        """
        Remove a waiter; harmless if it does not wait.
        """

    def respond(word: int, record: bytes, partition: int) -> bool:
        """
        Send the response to a management datagram.

        @param word: as for C{post}.
        @param record: GRH, DETH and MAD.
        @param partition: the request's P_Key; 0 if the medium has none.
        @return: False if the medium has no room now.
        """

    def sendManagement(attribute: int, body: bytes, transaction: int = 0) -> None:
        """
        Send a connection management message, at once or when there is room.

        @param body: the message without its MAD header, 232 bytes.
        @param transaction: the transaction id, where a whole MAD is sent.
        """

    def unsent() -> int:
        """
        @return: how many connection management messages wait for room.
        """

    def prepareRequest(request: ConnectRequest) -> None:
        """
        Put into a request the parameters that a fabric of packets negotiates (PSN, path MTU).

        @param request: a L{ConnectRequest<twisted_ib.hca.connection.request.ConnectRequest>}, to be
            changed.
        """

    def prepareReply(reply: ConnectReply, request: ConnectRequest) -> Any:
        """
        Do the same for a reply.

        @param reply: a L{ConnectReply<twisted_ib.hca.connection.request.ConnectReply>}, to be
            changed.
        @param request: the request that it answers.
        @return: the parameters as a queue pair's C{proposal}, or L{None}.
        """

    def readReply(reply: ConnectReply, number: int) -> None:
        """
        Take these parameters from the peer's reply.

        @param number: the queue pair that the request named.
        """


class IPath(IPeerPath):
    """
    The path that a bound queue pair uses.
    """

    way: IPeerPath = Attribute("The L{IPeerPath} to its peer; all queue pairs of the peer share it.")
    scheduler: Any = Attribute(
        "The place of the core's L{ResponseScheduler<twisted_ib.hca.services.responder.ResponseScheduler>};"
        " L{None} at first."
    )
    messageBytes: int = Attribute("The longest stream message that it carries well.")
    recordBytes: int = Attribute("Bytes of each record but the last of a message or READ response.")
    inPackets: bool = Attribute("Whether only the refused packet is sent again, and not its whole message.")
    inSegments: bool = Attribute(
        "Whether records become segments of DDP (RFC 5041): then each record of a SEND says how the message"
        " ends, as its last one does; and a WRITE may come between the records of a SEND."
    )
    retransmits: int = Attribute("Packets sent again; 0 where nothing is lost.")
    peerSleep: Sequence[int] = Attribute("One number, which is odd if the peer is known to sleep.")
    peerAsks: Sequence[int] = Attribute("One number, which is 0 as long as C{grantWrites} is in vain.")
    peerGrants: Sequence[int] = Attribute("One number, which is 0 as long as C{writeDirectly} is in vain.")

    sendsInPlace: bool = Attribute(
        "Whether C{postInPlace} may be called, as at an adapter, and the peers of its streams get no keys."
    )

    def postInPlace(word: int, header: bytes, payload: memoryview, length: int) -> None:
        """
        Publish a SEND whose payload is registered memory, which is read where it is: it must not change until
        what C{position} returns then is acknowledged.  C{hasPlace} has just said that there is room.
        """

    def hasPlace() -> bool:
        """
        @return: whether C{postInPlace} has room for one SEND.
        """

    def alert() -> None:
        """
        Wake the peer, which sleeps: a record comes soon. The end of the batch wakes it all the same if it
        sleeps again.
        """

    def writeDirectly(number: int, key: int, address: int, source: object, offset: int, length: int) -> bool:
        """
        Write into the peer's memory without a record, as the peer grants after the first WRITE of a
        queue pair to that memory.

        @param number: the peer's queue pair.
        @param key: the remote key.
        @param address: of the first byte there.
        @param source: a L{MemoryRegion<twisted_ib.hca.memory.memory.MemoryRegion>}, from C{offset} on;
            bytes, from their beginning; or L{None}, only to ask.
        @param length: bytes, at least one.
        @return: whether they are there; if not, some may be.
        """

    def grantWrites(queuePair: BoundQueuePair, region: Any) -> bool:
        """
        The peer's WRITE to a region was done: later ones of the same queue pair may come without a record.

        @param region: a L{MemoryRegion<twisted_ib.hca.memory.memory.MemoryRegion>}.
        @return: whether L{revokeWrites} is to be called before the queue pair's rights end.
        """

    def revokeWrites(queuePair: BoundQueuePair) -> None:
        """
        Take back what was granted to a queue pair's peer: afterwards it writes nothing more.
        """

    def modified(queuePair: BoundQueuePair) -> None:
        """
        A bound queue pair has changed its state or attributes.

        @raise QueuePairError: they are refused; then the path has changed nothing.
        """

    def postReserved(word: int, body: bytes, refusal: bool) -> bool:
        """
        Publish a small record that may use the reserve, so that refusals and ends get through when data is
        stuck.

        @param refusal: whether it may use the last part of the reserve too.
        @return: False if even the reserve has no room.
        """

    # One argument, so that this can be the bound append of a queue: it runs for each work request.
    def track(request: Any) -> object:
        """
        Call C{requester.acknowledged(position)} when the peer has consumed everything before a position.

        @param request: position and requester; positions never decrease from one call to the next.
        """

    # IBTA vol. 1 9.6: HCAs drop a packet for a queue pair that does not exist, and the requester finds out by
    # its timeout.  A peer that is a living process refuses at once, but does not know who sent.
    def expect(requester: Any) -> None:
        """
        A queue pair begins to send requests that it keeps: until it is unbound it gets what the peer refuses
        for want of a queue pair of the number C{requester.remote}.
        """


class ITwinPath(IPath):
    """
    A path of a fabric on which an HCA can reach itself by a path with two ends.
    """

    twin: Any = Attribute("On a path from an HCA to itself the other end; else L{None}.")


class ISharedMemoryPath(IPath):
    """
    A path whose peer may map registered memory, so that records refer to it instead of carrying its bytes.
    """

    def offer(segment: Segment) -> int:
        """
        Let the peer map a segment of registered memory for reading.

        @param segment: one that the fabric's C{allocate} gave.
        @return: the number by which records refer to it, or 0 if the bytes must travel in the records.
        """

    def withdraw(segment: Segment) -> None:
        """
        Have the peer unmap a segment; harmless if it was not offered.
        """

    def offered(number: int) -> memoryview | None:
        """
        @return: a view of the segment that the peer offered under a number, or L{None}.
        """

    def handOver(number: int, descriptor: int) -> bool:
        """
        Give the peer a descriptor of a connection of the kernel's, which is to take the place of one on this
        path.

        @param number: the number of our queue pair of that one.
        @param descriptor: stays open here.
        @return: whether it was given; then a message on the connection tells the peer to look for it.
        """

    def handedOver(number: int) -> int | None:
        """
        @param number: the number of the peer's queue pair.
        @return: the descriptor that the peer has given for it, the caller's to close; -1 if it had none, or
            none was free here; L{None} where nobody gives any.
        """

    def peerProcess() -> int:
        """
        @return: the number of the peer's process, if it is one of our user whose memory the kernel may let us
            read; else 0.
        """
