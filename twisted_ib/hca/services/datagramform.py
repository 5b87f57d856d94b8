"""
The forms of a datagram's record: what stands before its DETH.

Behind it every record has DETH, immediate data if there is any, and payload.

  - L{RoutedForm}: a GRH, or of RoCEv2 the IP header in its place.  Addresses are GIDs.
  - L{LocalForm}: 8 octets in place of the local route header (IBTA vol. 1 7.7), with LIDs, service level and
    P_Key; then a GRH, or 40 zero octets for a datagram without one.  Addresses are LIDs.

The 40 octets are those that a UD receive has before its payload, used or not (IBTA vol. 1 9.8.3).

The link layer of a port decides: L{FORMS}.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.partition import matches
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID, KeyViolation, Port
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.queues.completion import LocalCompletion, RoutedCompletion, WCFlags, WorkCompletion
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.grh import (
    DETH_BYTES,
    GRH_BYTES,
    destination,
    ends,
    isMulticast,
    length,
    packGRH,
    route,
)
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair
    from twisted_ib.structs import Packed


#: A remote Q_Key with this bit means the sender's own (IBTA vol. 1 10.2.5).
OWN_KEY: Final = 1 << 31
_GRH_FLAG: Final = int(WCFlags.GRH)
_IMMEDIATE_BYTES: Final = headers.IMMEDIATE.size
#: SLID, DLID, service level and link next header, P_Key.
_LOCAL: Final[Packed[tuple[int, int, int, int]]] = Struct(">HHBxH")
_SERVICE_LEVEL_SHIFT: Final = 4
#: Link next header (IBTA vol. 1 7.7.5): a BTH follows, or a GRH and then a BTH.
_NEXT_BTH: Final = 2
_NEXT_GRH: Final = 3
_NEXT_MASK: Final = 3
_NO_GRH: Final = bytes(GRH_BYTES)
#: The version of a GRH, the offset of its destination, and the first octets of the GIDs of groups: ff00::/8,
#: and those of IPv4 groups.
_IPV6: Final = 6
_DESTINATION: Final = 24
_GROUPS: Final = (0xFF, 0)
#: A completion tells the kind of a frame (IBTA vol. 1 annex A17.4.5.1).  Linux's mlx5 has that in the service
#: level, where UCX reads it: there is UDP, over IPv4.
_IPV4_FRAME: Final = 0b1010
#: Counters of what a subnet manager is told of.
_BAD_PKEY: Final = "packets_bad_pkey"
_BAD_QKEY: Final = "qkey_violations"
_VIOLATIONS: Final = frozenset((_BAD_PKEY, _BAD_QKEY))
#: Of replies: the header's hop limit was counted down on its way here.
_REPLY_HOPS: Final = 0xFF


class DatagramForm:
    """
    One form.  C{head} is the beginning of a record, at least up to the payload if the record is as long.

    @cvar size: octets before the DETH.
    @cvar completion: the class of a receive's completion.
    """

    size = 0
    completion: type[WorkCompletion] = WorkCompletion

    def pack(self, queuePair: Any, vector: AddressVector, behind: int) -> bytes:
        """
        @param queuePair: the sender.
        @param vector: where to.
        @param behind: bytes behind the DETH, an immediate included.
        @return: what stands before the DETH.
        """
        raise NotImplementedError

    def peerKey(self, peer: Any) -> int:
        """
        @param peer: of a path.
        @return: the address that its datagrams come from.
        """
        raise NotImplementedError

    def vector(self, key: int, hopLimit: int) -> AddressVector:
        """
        @param key: an address, as of C{peerKey}.
        @return: the address vector that leads there.
        """
        raise NotImplementedError

    def group(self, head: bytes) -> int:
        """
        @return: the MGID of a datagram to a group, else 0.
        """
        raise NotImplementedError

    def grh(self, head: bytes) -> bytes:
        """
        @return: 40 octets for the receive buffer.
        """
        raise NotImplementedError

    def describe(self, port: Port, completion: Any, head: bytes) -> None:
        """
        Put into a completion of the form's class whether there is a GRH, and the sender's address.
        """
        raise NotImplementedError

    def reply(self, head: bytes) -> AddressVector:
        """
        @return: the address for replies to a datagram that was accepted.
        """
        raise NotImplementedError

    def check(self, queuePair: QueuePair, key: int, head: bytes, behind: int) -> str:
        """
        Check the addresses and partition of a datagram that arrived.

        @param key: C{peerKey} of the path that it came by.
        @return: as L{fault}.
        @raise WireError: the header is malformed.
        """
        raise NotImplementedError

    def fault(
        self, queuePair: QueuePair, queueKey: int, key: int, opcode: int, head: bytes, octets: int
    ) -> str:
        """
        Find what is wrong with a datagram that arrived.

        @param queueKey: the Q_Key of the queue pair.
        @param key: C{peerKey} of the path that it came by.
        @param octets: the length of the record.
        @return: the counter of the reason to drop it for, or C{""}.
        """
        behind = octets - self.size - DETH_BYTES
        payload, code = behind, opcode & ~SOLICITED
        if code == UD_SEND_ONLY_IMMEDIATE:
            payload -= _IMMEDIATE_BYTES
        elif code != UD_SEND_ONLY:
            return "datagrams_malformed"
        # Also bounds what one datagram copies: a local peer does not go through a path MTU.
        if not 0 <= payload <= limits.DATAGRAM_BYTES:
            return "datagrams_malformed"
        try:
            found = self.check(queuePair, key, head, behind)
        except WireError:
            return "datagrams_malformed"
        # IBTA vol. 1 10.2.5: dropped and counted, as in Linux rxe_recv.c check_keys().
        if not found and headers.DETH.unpack_from(head, self.size)[0] != queueKey:
            found = _BAD_QKEY
        if found in _VIOLATIONS:
            self.violated(queuePair, found, head)
        return found

    def violated(self, queuePair: QueuePair, counter: str, head: bytes) -> None:
        """
        A datagram had another P_Key or Q_Key than its queue pair.

        @param counter: which.
        """


class RoutedForm(DatagramForm):
    """
    The form of Ethernet, and between processes: a GRH, or an IP header (IBTA vol. 1 annex A17).
    """

    completion = RoutedCompletion
    size = GRH_BYTES

    def pack(self, queuePair: Any, vector: AddressVector, behind: int) -> bytes:
        return packGRH(
            *(vector.trafficClass, vector.flowLabel, length(behind), vector.hopLimit),
            *(queuePair.device.gid, vector.gid),
        )

    def peerKey(self, peer: Any) -> int:
        gid: int = peer.gid
        return gid

    def vector(self, key: int, hopLimit: int) -> AddressVector:
        return AddressVector(key, hopLimit=hopLimit)

    def group(self, head: bytes) -> int:
        # Most are for an HCA's own GID, which costs no call.
        if head[0] >> 4 == _IPV6 and head[_DESTINATION] not in _GROUPS:
            return 0
        gid = destination(head)
        return gid if isMulticast(gid) else 0

    def grh(self, head: bytes) -> bytes:
        return head[:GRH_BYTES]

    def describe(self, port: Port, completion: Any, head: bytes) -> None:
        completion.flags |= _GRH_FLAG
        completion.serviceLevel = 0 if head[0] >> 4 == _IPV6 else _IPV4_FRAME

    def reply(self, head: bytes) -> AddressVector:
        source, _, label, trafficClass, _ = route(head)
        return AddressVector(source, flowLabel=label, hopLimit=_REPLY_HOPS, trafficClass=trafficClass)

    def shown(self, head: bytes) -> tuple[int, int, int, int, int]:
        """
        The header as a capture shows it.

        @return: GIDs of sender and receiver, flow label, traffic class, hop limit.
        @raise WireError: there is no such header.
        """
        return route(head)

    def check(self, queuePair: QueuePair, key: int, head: bytes, behind: int) -> str:
        # Records have no P_Key; that of a packet is checked before.
        source, target = ends(head, behind)
        # A peer cannot forge the source: it must be the GID that the path was established with.
        if source == key and (isMulticast(target) or queuePair.device.hasGID(target)):
            return ""
        return "datagrams_misaddressed"


class LocalForm(DatagramForm):
    """
    The form of InfiniBand.
    """

    size = _LOCAL.size + GRH_BYTES
    completion = LocalCompletion

    def pack(self, queuePair: Any, vector: AddressVector, behind: int) -> bytes:
        following, grh = _NEXT_BTH, _NO_GRH
        if vector.isGlobal:
            following, grh = _NEXT_GRH, FORMS[LinkLayer.ETHERNET].pack(queuePair, vector, behind)
        level = vector.serviceLevel << _SERVICE_LEVEL_SHIFT | following
        return _LOCAL.pack(queuePair.device.port.lid, vector.lid, level, queuePair.partition) + grh

    def peerKey(self, peer: Any) -> int:
        lid: int = peer.lid
        return lid

    def vector(self, key: int, hopLimit: int) -> AddressVector:
        # Without a GRH.
        return AddressVector(0, lid=key, isGlobal=False)

    def group(self, head: bytes) -> int:
        # Datagrams to groups have a GRH (IBTA vol. 1 10.5).
        gid = destination(self.grh(head)) if self._hasGRH(head) else 0
        return gid if isMulticast(gid) else 0

    def grh(self, head: bytes) -> bytes:
        return head[_LOCAL.size : self.size]

    @staticmethod
    def _hasGRH(head: bytes) -> bool:
        return bool(_LOCAL.unpack_from(head)[2] & _NEXT_MASK == _NEXT_GRH)

    def describe(self, port: Port, completion: Any, head: bytes) -> None:
        completion.sourceLID, target, level, _ = _LOCAL.unpack_from(head)
        completion.pathBits = target & (1 << port.lmc) - 1
        completion.serviceLevel = level >> _SERVICE_LEVEL_SHIFT
        if level & _NEXT_MASK == _NEXT_GRH:
            completion.flags |= _GRH_FLAG

    def reply(self, head: bytes) -> AddressVector:
        lid, _, level, _ = _LOCAL.unpack_from(head)
        level >>= _SERVICE_LEVEL_SHIFT
        if not self._hasGRH(head):
            return AddressVector(0, lid=lid, serviceLevel=level, isGlobal=False)
        source, _, label, trafficClass, _ = route(self.grh(head))
        return AddressVector(
            *(source, 0, label, _REPLY_HOPS, trafficClass),
            lid=lid,
            serviceLevel=level,
        )

    def shown(self, head: bytes) -> tuple[int, int, int, int, bytes]:
        """
        The headers as a capture shows them.

        @return: LIDs of sender and receiver, service level, P_Key, and the GRH or no octets.
        """
        source, target, level, partition = _LOCAL.unpack_from(head)
        grh = self.grh(head) if self._hasGRH(head) else b""
        return source, target, level >> _SERVICE_LEVEL_SHIFT, partition, grh

    def check(self, queuePair: QueuePair, key: int, head: bytes, behind: int) -> str:
        source, target, level, partition = _LOCAL.unpack_from(head)
        following, grh, device = level & _NEXT_MASK, self.grh(head), queuePair.device
        isOurs = bool(device.port.hasLID(target))
        if following == _NEXT_GRH:
            _, gid = ends(grh, behind)
            if isMulticast(gid):
                isOurs = target > LARGEST_UNICAST_LID
            else:
                isOurs = isOurs and device.hasGID(gid)
        elif following != _NEXT_BTH or grh != _NO_GRH:
            raise WireError(f"no local route header before a datagram: {head[: self.size].hex()}")
        if source != key or not isOurs:
            return "datagrams_misaddressed"
        return "" if matches(partition, queuePair.partition) else _BAD_PKEY

    def violated(self, queuePair: QueuePair, counter: str, head: bytes) -> None:
        # The port tells its subnet manager.
        source, target, level, partition, grh = self.shown(head)
        queueKey, number = headers.DETH.unpack_from(head, self.size)
        isQueueKey = counter == _BAD_QKEY
        violation = KeyViolation(
            *(isQueueKey, queueKey if isQueueKey else partition, source, target, level),
            *(number & headers.QPN_MASK, queuePair.number, *(route(grh)[:2] if grh else (0, 0))),
        )
        queuePair.device.fabric.violated(violation)


def localDatagram(source: int, target: int, partition: int) -> bytes:
    """
    @param source: the LID of the sender, and C{target} that of the receiver.
    @return: the octets before the DETH of a datagram without a GRH.
    """
    return _LOCAL.pack(source, target, _NEXT_BTH, partition) + _NO_GRH


#: The form of a port's datagrams, by its link layer.
FORMS: Final[dict[LinkLayer, DatagramForm]] = {
    LinkLayer.ETHERNET: RoutedForm(),
    LinkLayer.INFINIBAND: LocalForm(),
}
