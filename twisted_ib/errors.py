"""
The exceptions of twisted_ib, except Twisted's own.

No Twisted here: the adapters in L{twisted_ib.internet} convert these to the errors of
C{twisted.internet.error}.
"""

from __future__ import annotations

import errno

#: The numbers of an OSError of a process, or a host, without a free descriptor (open(2), accept(2)).
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE))


class HCAError(Exception):
    """
    Base class of all exceptions of twisted_ib.
    """


# Parsers raise nothing else: a peer's bytes must not make struct.error or IndexError reach the reactor.
class WireError(HCAError):
    """
    Malformed bytes from a peer.
    """


class LengthError(WireError):
    """
    A packet or MAD has a wrong length, or a wrong length field.
    """


class OpcodeError(WireError):
    """
    An unknown operation code in a packet.
    """


# IBTA vol. 1 annex A17; receivers drop such packets without a signal (Linux rxe_icrc.c).
class InvariantCRCError(WireError):
    """
    A packet's invariant CRC is wrong: it was damaged on its way.
    """


class HeaderError(WireError):
    """
    A header has another version or protocol, or a forbidden value.
    """


class SDPWireError(WireError):
    """
    Not a valid SDP message.
    """


class RDSWireError(WireError):
    """
    Not a valid RDS message.
    """


class ResourceLimitError(HCAError):
    """
    A limit of L{twisted_ib.limits} is reached.
    """


class BacklogFullError(ResourceLimitError):
    """
    So many processes wait to be accepted by the peer already that it takes no more now.
    """


class WrongThreadError(HCAError):
    """
    A device was used outside of its thread; use C{reactor.callFromThread}.
    """


class DeviceError(HCAError):
    """
    A device cannot be used as requested.
    """


class UnknownDeviceError(DeviceError):
    """
    No device has this name.
    """


class DeviceClosedError(DeviceError):
    """
    The device was closed, or belongs to the parent of this forked process.
    """


# librdmacm/preload.c: RDMA connections do not cross a fork.
class ForkedSocketError(DeviceError, OSError):
    """
    A socket over SDP was used in a forked child: it is its parent's.  Connect or accept in the child.
    """

    def __init__(self) -> None:
        super().__init__(
            errno.EBADF,
            "this socket over SDP belongs to the process that this one was forked from:"
            " connect or accept in the child, or have a rule use tcp",
        )


class RunDirectoryError(DeviceError):
    """
    The directory where processes of one host find each other is unusable.
    """


class ServiceInUseError(HCAError):
    """
    Another listener has this service (address and port).
    """


class NoRouteError(HCAError):
    """
    No device reaches this address.
    """


# The GID table has one entry per IP address (IBTA vol. 1 annex A17), and the HCAs of processes share those of
# their host.
class SharedGIDError(NoRouteError):
    """
    A GID is an address of this host, which all its HCAs share.  Use the peer's GID with index 0, or the
    connection manager.
    """


class NoListenerError(HCAError):
    """
    Nothing listens on this service.
    """


class HiddenListenerError(NoListenerError):
    """
    Somebody listens on this service, and not for this process: in another network namespace, or as a user
    that is not allowed here; the text says which.
    """


class HandshakeError(HCAError):
    """
    A process that asked to share a ring violated the handshake.

    @cvar counter: the device's counter of such refusals.
    """

    counter = "handshakesRefused"


# Without seals (memfd_create(2), F_SEAL_SHRINK) a peer could truncate the memory and crash us with SIGBUS.
class SegmentError(HandshakeError):
    """
    The peer's shared memory is not sealed memory of the right size.
    """

    counter = "segmentsRefused"


# A blocking descriptor would let a peer stop our event loop.
class DoorbellError(HandshakeError):
    """
    The peer's doorbell is not a non-blocking eventfd.
    """

    counter = "doorbellsRefused"


class DescriptorError(HandshakeError):
    """
    A message of the peer was truncated, or had a wrong number of descriptors.
    """

    counter = "descriptorsRefused"


class LayoutError(HandshakeError):
    """
    The peer's rings have another layout or size.
    """

    counter = "layoutsRefused"


class PeerIdentityError(HandshakeError):
    """
    The peer belongs to a user who is not allowed.
    """

    counter = "peersRefused"


class SilentPeerError(HandshakeError):
    """
    The peer did not complete the handshake in time.
    """

    counter = "peersSilent"


class PeerRefusedError(HandshakeError):
    """
    The peer refused our handshake; the text has its reason.
    """

    counter = "refusedByPeer"


class PathLostError(HCAError):
    """
    The path to a peer's HCA is gone: its process died or violated the protocol.
    """


class PeerEndedError(PathLostError):
    """
    The peer's process has ended, or has closed its HCA.

    @ivar needed: By number of our queue pairs: the last message that must have been received for its stream
        to have ended in order; more than any where the peer had not read all, nothing if it left no word, or
        had no place for one.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.needed: dict[int, int] = {}


class UnheardError(PathLostError):
    """
    A loss of which a stream that does not read hears when it is used.

    @ivar unheard: How often something may still be sent, whose answer is a reset, until that is heard; below
        zero it is.  A piece as long as the buffer counts twice.
    """

    def __init__(self, text: str, unheard: int = 0) -> None:
        super().__init__(text)
        self.unheard = unheard

    def isHeard(self, isWriting: bool) -> bool:
        """
        @param isWriting: Whether the stream's user waits to write more, or to close.
        @return: Whether it is to be told.
        """
        return self.unheard < 0 or isWriting


class PeerResetError(UnheardError):
    """
    The peer has reset the connection.
    """


class StreamEndedError(UnheardError):
    """
    The peer's process has ended with nothing unread and nothing unsent: only what is sent now is lost.
    """

    def isHeard(self, isWriting: bool) -> bool:
        return self.unheard < 0 and not isWriting


# Shared memory is a peer's input like any other; the layout is checked with each record.
class RingError(PathLostError):
    """
    A peer left a ring or a record in an invalid state.
    """


# IBTA vol. 1 10.3.1 has the states, IBTA vol. 1 11.6.1 the immediate errors of verbs.
class QueuePairError(HCAError):
    """
    The state or the attributes of a queue pair do not permit a verb.
    """


class UnsupportedOperationError(QueuePairError):
    """
    The fabric of a queue pair does not have an operation: iWARP has neither immediate data nor atomics.  Or
    its adapter has no queue pairs of a type.
    """


class MemoryRegionError(HCAError):
    """
    Memory cannot be registered or deregistered as requested.
    """


class UnsupportedRegionError(MemoryRegionError):
    """
    An adapter has no memory of such rights or such an address, and registers none anew (EOPNOTSUPP).
    """


# On the wire this is NAK 0x62, remote access error (IBTA vol. 1 9.7.5.2; Linux rxe_resp.c, check_rkey).
class MemoryAccessError(HCAError):
    """
    An operation violates the key, bounds, rights or protection domain of memory.
    """


class ResourceBusyError(HCAError):
    """
    An object in use cannot be destroyed; the text names its users.
    """


# IBTA vol. 1 12.9.7 has the states.
class ConnectionStateError(HCAError):
    """
    The state of a connection does not permit a command of the communication manager.
    """


class MessageTooLongError(HCAError, ValueError):
    """
    A message exceeds the connection's maximum; nothing was sent.
    """


class SwitchError(HCAError):
    """
    A connection was to switch to RDMA, did not, and has ended; the text says why.
    """


class NotSwitchableError(SwitchError, ValueError):
    """
    A connection cannot switch to RDMA as it is; nothing has happened to it.
    """


class SwitchTimeoutError(SwitchError):
    """
    The peer of a connection that switches to RDMA did not do its part in time.
    """


class TransportSwitchedError(HCAError):
    """
    A transport was used after its connection had switched to RDMA; the protocol has another one.
    """


class WorkCompletionError(HCAError):
    """
    A work request completed with an error (IBTA vol. 1 11.6.2).
    """

    def __init__(self, status: int, statusName: str, operation: str) -> None:
        super().__init__(f"{operation} ended with {statusName} ({int(status)})")
        #: A number of C{enum ibv_wc_status}.
        self.status = status
        #: Its name, such as C{"REM_ACCESS_ERR"}.
        self.statusName = statusName
        #: A name of C{enum ibv_wc_opcode}, such as C{"RDMA_READ"}.
        self.operation = operation


class SAError(HCAError):
    """
    Subnet administration did not do what it was asked.
    """


class NoSubnetManagerError(SAError):
    """
    The port knows no subnet manager, whom it could ask.
    """


class SATimeoutError(SAError):
    """
    Subnet administration did not answer.
    """


class SAResponseError(SAError):
    """
    The response of subnet administration is none to what it was asked.
    """


class SAStatusError(SAError):
    """
    Subnet administration refused a request (IBTA vol. 1 15.2.3); the text says what to do.
    """

    def __init__(self, text: str, status: int, statusName: str) -> None:
        super().__init__(text)
        #: The status of its response.
        self.status = status
        #: Its name, such as C{"INSUFFICIENT_COMPONENTS"}.
        self.statusName = statusName


class NoRecordsError(SAStatusError):
    """
    There is no such record: no such path, group or service.
    """


class SDPError(HCAError):
    """
    An SDP peer violated the protocol; the connection was aborted.
    """


class RDSError(HCAError):
    """
    Base class of the exceptions of RDS sockets.
    """


class DatagramTooLongError(RDSError, ValueError):
    """
    A datagram exceeds the socket's maximum; nothing was sent (EMSGSIZE).
    """


class SendBudgetError(RDSError, ResourceLimitError):
    """
    The send budget is used up; the datagram was not accepted (EAGAIN).
    """


# Linux net/rds/cong.c, rds_cong_wait returns ENOBUFS too.
class DestinationCongestedError(SendBudgetError):
    """
    The destination is congested and its budget is used up; the datagram was not accepted (ENOBUFS).
    """


class PeerGoneError(RDSError):
    """
    A peer is unreachable, or what waited for it was dropped.
    """


class RDSUnsupportedError(RDSError):
    """
    RDS over TCP has no RDMA and no atomics, RDS over iWARP no atomics (EOPNOTSUPP).
    """


# The numbers are those of Linux include/uapi/linux/rds.h.
class RDSOperationError(RDSError):
    """
    An RDMA operation of RDS failed.
    """

    def __init__(self, status: int, statusName: str, operation: str) -> None:
        super().__init__(f"{operation} ended with {statusName}")
        #: The number of C{RDS_CMSG_RDMA_STATUS}.
        self.status = status
        #: Its name, such as C{"RDS_RDMA_REMOTE_ERROR"}.
        self.statusName = statusName
        #: Such as C{"RDMA_WRITE"}.
        self.operation = operation


class RulesError(HCAError):
    """
    A file of the offload switch's rules is invalid.
    """

    def __init__(self, *errors: str) -> None:
        super().__init__(errors[0])
        #: Lines C{FILE:LINE:COLUMN: expected ...}, at least one and at most
        #: L{POLICY_ERRORS<twisted_ib.limits.POLICY_ERRORS>}; the exception's text is the first.
        self.errors = errors


class InterfaceClosedError(HCAError):
    """
    An IPoIB interface was closed, or its device or partition has gone.
    """


class TopologyError(HCAError):
    """
    A topology file is not valid; the text begins with the file and the line.
    """


class PartitionError(HCAError):
    """
    A partition file is not valid; the text begins with the file and the line.
    """


class TunError(HCAError):
    """
    A TUN device or a namespace cannot be had; the text says what is missing.
    """


class LibraryBuildError(HCAError):
    """
    The libraries for C programs cannot be built; the text says what is missing, and which package has it.
    """
