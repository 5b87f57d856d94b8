"""
Messages between the host of a subnet and the processes whose devices are at its ports, on a SEQPACKET socket.

The ways from a port are in a file of memory, whose descriptor is sent: L{packWays} and L{Ways}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

from twisted_ib.errors import WireError
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import KeyViolation, PhysicalState, PortChange, PortState
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.subnet.network.smi import Packet

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: The first octet of a message.
ATTACH: Final = 1
ATTACHED: Final = 2
REFUSED: Final = 3
PORT: Final = 4
WAYS: Final = 5
MAD: Final = 6
#: MADs that pass the port of a device that watches it, into and out of it.
INTO: Final = 7
OUT: Final = 8
#: Packets that a device has dropped for their keys.
VIOLATED: Final = 9
#: A program at a device is a subnet manager from now on, or no longer.
MANAGES: Final = 10
#: Octets of the longest message, and of a description (IBTA vol. 1 14.2.5.2).
MESSAGE_BYTES: Final = 8192
DESCRIPTION_BYTES: Final = 64
#: Octets of the longest file of ways.
WAYS_BYTES: Final = 16 * 1024 * 1024

#: In front of a request to attach; another layout has another one.
_MAGIC: Final = b"tibsub2"
#: Kind, magic, the LID that the port had, GUID, whether the device watches; then the description.
_ATTACH: Final[Packed[tuple[int, bytes, int, int, bool]]] = Struct("<B7sHQ?")
_ATTACHED: Final[Packed[tuple[int, int]]] = Struct("<BQ")
#: State, physical state, LID, LMC, SM LID, SM SL, width, speed, CapabilityMask, whether clients register
#: again, numbers of GIDs and P_Keys.
_SETTINGS: Final[Packed[tuple[int, int, int, int, int, int, int, int, int, int, int, int]]] = Struct(
    "<BBHBHBBBIBHH"
)
_KEY: Final[Packed[tuple[int]]] = Struct("<H")
_GID_BYTES: Final = 16
_MAD: Final[Packed[tuple[int, int, int, int, int]]] = Struct("<BHHII")
#: Kind, number of packets; of the latest: whether for its Q_Key, key, LIDs, service level, queue pairs, GIDs.
_VIOLATED: Final[Packed[tuple[int, int, bool, int, int, int, int, int, int, bytes, bytes]]] = Struct(
    "<BI?IHHBII16s16s"
)
#: Numbers of ways, of devices and of groups.
_HEAD: Final[Packed[tuple[int, int, int]]] = Struct("<III")
_WAY: Final[Packed[tuple[int, int]]] = Struct("<HQ")
#: GUID, first LID, whether it is reached and reaches back, octets of the description, number of P_Keys.
_DEVICE: Final[Packed[tuple[int, int, int, int, int]]] = Struct("<QHBBH")
_GROUP: Final[Packed[tuple[int, int]]] = Struct("<HH")
_GUID: Final[Packed[tuple[int]]] = Struct("<Q")
_MOST: Final = 0xFFFFFFFF
_QPN_BITS: Final = 24
_LEVEL_BITS: Final = 4


class Attach(NamedTuple):
    """
    A request to attach.
    """

    guid: int
    lid: int
    description: str
    isWatching: bool = False


def packAttach(guid: int, lid: int, description: str, isWatching: bool = False) -> bytes:
    """
    @param lid: the LID that the port had before; 0 for none.
    @param isWatching: whether the device is told of all MADs that pass its port.
    @return: the request.
    """
    return _ATTACH.pack(ATTACH, _MAGIC, lid, guid, isWatching) + description.encode()[:DESCRIPTION_BYTES]


def parseAttach(octets: bytes) -> Attach:
    """
    @raise WireError: it is not valid.
    """
    if not _ATTACH.size <= len(octets) <= _ATTACH.size + DESCRIPTION_BYTES:
        raise WireError(f"a request to attach has no {len(octets)} octets")
    kind, magic, lid, guid, isWatching = _ATTACH.unpack_from(octets)
    if kind != ATTACH or magic != _MAGIC:
        raise WireError("a process of another version wants to attach; start both anew")
    return Attach(guid, lid, octets[_ATTACH.size :].decode(errors="replace"), isWatching)


def packAttached(guid: int) -> bytes:
    """
    @return: the answer of a host that has attached a device.
    """
    return _ATTACHED.pack(ATTACHED, guid)


def parseAttached(octets: bytes) -> int:
    """
    @return: the GUID of the port.
    @raise WireError: it is not valid.
    """
    if len(octets) != _ATTACHED.size:
        raise WireError("the host of the subnet does not say the GUID of the port")
    guid: int = _ATTACHED.unpack(octets)[1]
    return guid


def packPort(change: PortChange) -> bytes:
    """
    @param change: all settings of a port.
    @return: their message.
    """
    gids, keys = change.gids or (), change.partitions or ()
    head = _SETTINGS.pack(
        *(change.state, change.physicalState, change.lid, change.lmc, change.smLID, change.smSL),
        *(change.width, change.speed, change.capMask, change.reregister, len(gids), len(keys)),
    )
    tables = (*(gid.to_bytes(_GID_BYTES, "big") for gid in gids), *map(_KEY.pack, keys))
    return b"".join((bytes((PORT,)), head, *tables))


def parsePort(octets: bytes) -> PortChange:
    """
    @raise WireError: it is not valid.
    """
    try:
        head = _SETTINGS.unpack_from(octets, 1)
        state, physical, lid, lmc, smLID, smSL, width, speed, capMask, reregister, gids, keys = head
        at = 1 + _SETTINGS.size
        end = at + gids * _GID_BYTES
        if len(octets) != end + keys * _KEY.size:
            raise WireError("the settings of a port have another length")
        change = PortChange(
            state=PortState(state),
            physicalState=PhysicalState(physical),
            lid=lid,
            lmc=lmc,
            smLID=smLID,
            smSL=smSL,
            width=width,
            speed=speed,
            capMask=capMask,
            gids=tuple(
                int.from_bytes(octets[each : each + _GID_BYTES], "big") for each in range(at, end, _GID_BYTES)
            ),
            partitions=tuple(key for (key,) in _KEY.iter_unpack(octets[end:])),
            reregister=bool(reregister),
        )
        change.check()
    except (StructError, ValueError) as error:
        raise WireError(f"the settings of a port are not valid: {error}") from error
    return change


def packMAD(packet: Packet, kind: int = MAD) -> bytes:
    """
    @param kind: L{MAD}, L{INTO} or L{OUT}.
    @return: the message of a MAD.
    """
    head = _MAD.pack(kind, packet.slid, packet.dlid, packet.source, packet.destination)
    return head + bytes(packet.octets)


def parseMAD(octets: bytes) -> Packet:
    """
    @raise WireError: it is not valid.
    """
    if len(octets) != _MAD.size + MAD_BYTES:
        raise WireError(f"a MAD has no {len(octets) - _MAD.size} octets")
    _, slid, dlid, source, destination = _MAD.unpack_from(octets)
    return Packet(slid, dlid, source, destination, bytearray(octets[_MAD.size :]))


def packViolated(count: int, violation: KeyViolation) -> bytes:
    """
    @return: the message of packets that a device has dropped for their keys.
    """
    *numbers, source, target = violation
    gids = (gid.to_bytes(_GID_BYTES, "big") for gid in (source, target))
    return _VIOLATED.pack(VIOLATED, min(count, _MOST), *numbers, *gids)


def parseViolated(octets: bytes) -> tuple[int, KeyViolation]:
    """
    @return: how many, and the latest.
    @raise WireError: it is not valid.
    """
    if len(octets) != _VIOLATED.size:
        raise WireError(f"dropped packets are not told in {len(octets)} octets")
    _, count, isQueueKey, key, source, target, level, sender, receiver, *gids = _VIOLATED.unpack(octets)
    if (sender | receiver) >> _QPN_BITS or level >> _LEVEL_BITS:
        raise WireError(f"no packet has queue pairs {sender:#x} and {receiver:#x} and level {level}")
    fromGID, toGID = (int.from_bytes(gid, "big") for gid in gids)
    return count, KeyViolation(isQueueKey, key, source, target, level, sender, receiver, fromGID, toGID)


def packManages(isSM: bool) -> bytes:
    """
    @return: the message of a program that is a subnet manager from now on, or no longer.
    """
    return bytes((MANAGES, isSM))


def parseManages(octets: bytes) -> bool:
    """
    @raise WireError: it is not valid.
    """
    if octets not in (packManages(False), packManages(True)):
        raise WireError(f"a subnet manager does not begin or end by {octets[:8].hex()}")
    return octets == packManages(True)


class Reached(NamedTuple):
    """
    A device of the subnet, as another sees it.

    @ivar lid: its first LID.
    @ivar isReached: whether each reaches the other.
    @ivar partitions: its P_Key table.
    """

    lid: int
    isReached: bool
    description: str
    partitions: tuple[int, ...]


def packWays(
    ways: Mapping[int, int], devices: Mapping[int, Reached], groups: Mapping[int, tuple[int, ...]]
) -> bytes:
    """
    @param ways: LID -> GUID.
    @param devices: by GUID.
    @param groups: multicast LID -> GUIDs.
    @return: what a port reaches.
    """
    pieces = [_HEAD.pack(len(ways), len(devices), len(groups))]
    pieces += [_WAY.pack(lid, guid) for lid, guid in ways.items()]
    for guid, each in devices.items():
        text = each.description.encode()[:DESCRIPTION_BYTES]
        pieces.append(_DEVICE.pack(guid, each.lid, each.isReached, len(text), len(each.partitions)))
        pieces += [text, *map(_KEY.pack, each.partitions)]
    for lid, guids in groups.items():
        pieces += [_GROUP.pack(lid, len(guids)), *map(_GUID.pack, guids)]
    return b"".join(pieces)


class Ways:
    """
    The LIDs, devices and groups that a port reaches.

    @ivar routes: LID -> GUID.
    @ivar devices: by GUID; C{accepted} has the P_Keys that match one of theirs.
    @ivar groups: multicast LID -> GUIDs.
    """

    def __init__(self, octets: bytes = bytes(_HEAD.size)) -> None:
        """
        @raise WireError: they are not valid.
        """
        self.routes: dict[int, int] = {}
        self.devices: dict[int, Reached] = {}
        self.accepted: dict[int, frozenset[int]] = {}
        self.groups: dict[int, tuple[int, ...]] = {}
        try:
            self._parse(octets)
        except (StructError, ValueError) as error:
            raise WireError(f"the ways of a subnet are not valid: {error}") from error

    def _parse(self, octets: bytes) -> None:
        ways, devices, groups = _HEAD.unpack_from(octets)
        at = _HEAD.size
        for _ in range(ways):
            lid, guid = _WAY.unpack_from(octets, at)
            self.routes[lid] = guid
            at += _WAY.size
        for _ in range(devices):
            guid, lid, isReached, length, keys = _DEVICE.unpack_from(octets, at)
            at += _DEVICE.size
            text = octets[at : at + length].decode(errors="replace")
            at += length
            table = tuple(key for (key,) in _KEY.iter_unpack(octets[at : at + keys * _KEY.size]))
            at += keys * _KEY.size
            self.devices[guid] = Reached(lid, bool(isReached), text, table)
            self.accepted[guid] = PartitionTable(table).accepted
        for _ in range(groups):
            lid, count = _GROUP.unpack_from(octets, at)
            at += _GROUP.size
            self.groups[lid] = tuple(guid for (guid,) in _GUID.iter_unpack(octets[at : at + count * 8]))
            at += count * 8


def kindOf(octets: bytes) -> int:
    """
    @return: the kind of a message; 0 of an empty one.
    """
    return octets[0] if octets else 0


def refusal(text: str) -> bytes:
    """
    @return: the message of a refusal.
    """
    return bytes((REFUSED,)) + text.encode()[: MESSAGE_BYTES - 1]


def guidNamed(devices: Iterable[tuple[int, Reached]], name: str) -> int:
    """
    @return: the GUID of the device with a description; 0 if there is none.
    """
    return next((guid for guid, each in devices if name and each.description == name), 0)
