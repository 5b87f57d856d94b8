"""
Every exception of twisted_ib that is not one of Twisted's.

Nothing here imports Twisted: the adapters in L{twisted_ib.sdp} turn these into
C{ConnectError} and its kin.
"""

from __future__ import annotations


class HCAError(Exception):
    """
    Base of everything that twisted_ib raises by itself.
    """


class WireError(HCAError):
    """
    Bytes from a peer are not what the format says.
    """


class LengthError(WireError):
    """
    A packet or MAD has not the length that it must have, or says another one.
    """


class OpcodeError(WireError):
    """
    A packet's operation code has no meaning.
    """


class InvariantCRCError(WireError):
    """
    A packet's invariant CRC is wrong: it was damaged on its way.
    """


class HeaderError(WireError):
    """
    A header is of another version or protocol, or has a field that must not be so.
    """


class SDPWireError(WireError):
    """
    A message is not one of SDP.
    """


class RDSWireError(WireError):
    """
    A message is not one of RDS.
    """


class ResourceLimitError(HCAError):
    """
    A bound of L{twisted_ib.limits} is reached.
    """


class WrongThreadError(HCAError):
    """
    A device that belongs to one thread was used from another; use
    C{reactor.callFromThread}.
    """


class DeviceError(HCAError):
    """
    A device cannot be used as asked.
    """


class UnknownDeviceError(DeviceError):
    """
    No device has this name.
    """


class DeviceClosedError(DeviceError):
    """
    The device was closed, or belongs to the process this one was forked from.
    """


class RunDirectoryError(DeviceError):
    """
    The directory where processes of one host meet cannot be used.
    """


class ServiceInUseError(HCAError):
    """
    Somebody listens already on this service (address and port).
    """


class NoRouteError(HCAError):
    """
    No device reaches this address.
    """


class SharedGIDError(NoRouteError):
    """
    A GID is an address of this host, which all its HCAs have: it names none of them.  Use
    the peer's GID with index 0, or the connection manager.
    """


class NoListenerError(HCAError):
    """
    Nobody listens on this service.
    """


class HandshakeError(HCAError):
    """
    A process that wanted to share a ring did not keep to the handshake.

    @cvar counter: the name under which a device counts refusals of this kind.
    """

    counter = "handshakesRefused"


class SegmentError(HandshakeError):
    """
    What a peer offered as shared memory is not sealed memory of the right
    size.
    """

    counter = "segmentsRefused"


class DoorbellError(HandshakeError):
    """
    What a peer offered as a doorbell is not a non-blocking eventfd.
    """

    counter = "doorbellsRefused"


class DescriptorError(HandshakeError):
    """
    A message of a peer came cut off, or with more or fewer descriptors than it
    must.
    """

    counter = "descriptorsRefused"


class LayoutError(HandshakeError):
    """
    A peer's rings have another layout or size than ours.
    """

    counter = "layoutsRefused"


class PeerIdentityError(HandshakeError):
    """
    A peer belongs to a user who is not let in.
    """

    counter = "peersRefused"


class SilentPeerError(HandshakeError):
    """
    A peer did not say its part of the handshake in time.
    """

    counter = "peersSilent"


class PeerRefusedError(HandshakeError):
    """
    A peer refused our handshake; the text says why.
    """

    counter = "refusedByPeer"


class PathLostError(HCAError):
    """
    The way to a peer's HCA is gone: its process died or broke the rules.
    """


class RingError(PathLostError):
    """
    A peer left a ring or a record in a state that the layout forbids.
    """


class QueuePairError(HCAError):
    """
    A verb was called on a queue pair whose state or attributes forbid it.
    """


class MemoryRegionError(HCAError):
    """
    Memory cannot be registered or deregistered as asked.
    """


class MemoryAccessError(HCAError):
    """
    An operation named memory that its key, bounds, rights or protection domain do not
    give it.
    """


class ResourceBusyError(HCAError):
    """
    An object cannot be destroyed while others use it; the text names them.
    """


class ConnectionStateError(HCAError):
    """
    A connection of the communication manager was given a command that makes
    no sense in its state.
    """


class MessageTooLongError(HCAError, ValueError):
    """
    A message is longer than the connection's maximum; nothing of it was sent.
    """


class WorkCompletionError(HCAError):
    """
    A work request ended badly (IBTA vol. 1 11.6.2).

    @ivar status: how, a number of C{enum ibv_wc_status}.
    @ivar statusName: its name, such as C{"REM_ACCESS_ERR"}.
    @ivar operation: what was asked for, a name of C{enum ibv_wc_opcode}, such as C{"RDMA_READ"}.
    """

    def __init__(self, status: int, statusName: str, operation: str) -> None:
        super().__init__(f"{operation} ended with {statusName} ({int(status)})")
        self.status = status
        self.statusName = statusName
        self.operation = operation


class SDPError(HCAError):
    """
    An SDP peer did what its state or the protocol does not allow; the
    connection was aborted.
    """


class RDSError(HCAError):
    """
    Base of what a socket of RDS raises.
    """


class DatagramTooLongError(RDSError, ValueError):
    """
    A datagram is longer than the socket's maximum; nothing of it was sent (EMSGSIZE).
    """


class SendBudgetError(RDSError, ResourceLimitError):
    """
    As much waits to be sent as may; nothing was taken of what was to come on top (EAGAIN).
    """


class DestinationCongestedError(SendBudgetError):
    """
    The destination takes nothing, and as much waits for it as may; nothing was taken of what was
    to come on top (ENOBUFS).
    """


class PeerGoneError(RDSError):
    """
    A peer cannot be reached, or what waited for it was given up.
    """


class RDSUnsupportedError(RDSError):
    """
    RDS over TCP has no RDMA and no atomics (EOPNOTSUPP).
    """


class RDSOperationError(RDSError):
    """
    An RDMA operation of RDS was not done.

    @ivar status: why, the number of C{RDS_CMSG_RDMA_STATUS}.
    @ivar statusName: its name, such as C{"RDS_RDMA_REMOTE_ERROR"}.
    @ivar operation: what was asked for, such as C{"RDMA_WRITE"}.
    """

    def __init__(self, status: int, statusName: str, operation: str) -> None:
        super().__init__(f"{operation} ended with {statusName}")
        self.status = status
        self.statusName = statusName
        self.operation = operation


class RulesError(HCAError):
    """
    A file of the offload switch's rules cannot be used.

    @ivar errors: All that is wrong: lines as C{FILE:LINE:COLUMN: expected ...}, at least one and at
        most L{POLICY_ERRORS<twisted_ib.limits.POLICY_ERRORS>}; the text of the exception is the first.
    """

    def __init__(self, *errors: str) -> None:
        super().__init__(errors[0])
        self.errors = errors
