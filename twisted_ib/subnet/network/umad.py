"""
ibsim's protocol, by which libumad2sim gives OpenSM and infiniband-diags a port of a subnet.

L{UmadServer} has the clients, as many as ibsim: each is attached to one port, sends MADs from it, and gets
those that the port's own agents do not answer.  It has no sockets: octets come in, and go out through an
L{IWire}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define, field

from twisted_ib.hca.base.operation import SMI_QPN
from twisted_ib.hca.mad.takers import Taker, isResponse, queuePairOf
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import (
    ACTIVE,
    DATA,
    FIRST,
    LAST,
    RMPP,
    RMPP_VERSION,
    SUBNET_ADMINISTRATION,
    SUBNET_CLASSES,
    SUBNET_DIRECTED,
    TRANSFER_HEADERS,
    RMPPHeader,
    classHeader,
)
from twisted_ib.hca.wire.mad.mad import BASE_VERSION, CLASS_AT, HEADER, HEADER_BYTES, METHOD_AT
from twisted_ib.limits import UMAD_CLIENTS
from twisted_ib.subnet.network.smi import (
    HOP_COUNT_AT,
    HOP_POINTER_AT,
    PERMISSIVE_LID,
    Packet,
    isReturning,
    responded,
)

if TYPE_CHECKING:
    from twisted_ib.structs import Packed
    from twisted_ib.subnet.network.graph import Node, Port
    from twisted_ib.subnet.network.smi import Packet

#: Where the RMPP header ends: lengths count from there.
_BODY: Final = HEADER_BYTES + 12

# ibsim include/ibsim.h: magic, client, type, length, data; in the host's byte order.
CONTROL: Final[Packed[tuple[int, int, int, int, bytes]]] = Struct("=IIII64s")
MAGIC: Final = 0xDEADBEEF
ERROR: Final = 0
CONNECT: Final = 1
DISCONNECT: Final = 2
GET_PORT: Final = 3
GET_VENDOR: Final = 4
GET_GID: Final = 5
GET_GUID: Final = 6
GET_NODEINFO: Final = 7
GET_PORTINFO: Final = 8
SET_ISSM: Final = 9
GET_PKEYS: Final = 10
#: The data of CONNECT: the id in the name of the client's socket, or in the reply the client's number; queue
#: pair; whether it is a subnet manager; name of the node.
CLIENT: Final[Packed[tuple[int, int, int, bytes]]] = Struct("=III32s")
_PORT: Final[Packed[tuple[int, int]]] = Struct("=HB")
_VENDOR: Final[Packed[tuple[int, int, int, int]]] = Struct("=III4xQ")
_ISSM: Final[Packed[tuple[int]]] = Struct("=i")

#: Destination and source LID, destination and source queue pair, status, length, MAD.
MESSAGE: Final[Packed[tuple[int, int, int, int, int, int, bytes]]] = Struct(">HxxHxxIII4xQ256s")
#: Octets of a MAD that reach a client: umad2sim.c reads a message into a buffer of its size, in which a
#: struct ib_user_mad is in front of the MAD.  RMPP is the kernel's part, which libumad2sim does not play.
_ROOM: Final = 224
#: The status of a request that is lost (errno(3), ETIMEDOUT), so that its sender need not wait.
TIMED_OUT: Final = 110

#: Of subnet administration: SLtoVLMappingTableRecord; Get and GetTable.
_SL_TO_VL: Final = b"\0\x13"
_QUERIES: Final = (0x01, 0x12)

#: The upper 16 bits of a request's transaction id are its client's number.
_CLIENT_SHIFT: Final = 48
_TRANSACTION: Final = (1 << _CLIENT_SHIFT) - 1


class IWire(Protocol):
    """
    Carries messages to clients.
    """

    def attach(self, number: int, identity: int) -> bool:
        """
        Connect with a client's own socket.

        @return: whether there is one.
        """

    def detach(self, number: int) -> None:
        """
        Forget a client.
        """

    def send(self, number: int, message: bytes) -> bool:
        """
        Send a message of L{MESSAGE} to a client.

        @return: whether it was taken.
        """


class ISubnet(Protocol):
    """
    A subnet as the server sees it.
    """

    def find(self, name: str) -> Port | None:
        """
        @return: the port of the node with this name or description, of a switch port 0; that of the first
            node for no name.
        """

    def name(self, port: Port) -> str:
        """
        @return: the name of its node.
        """

    def carry(self, port: Port, packet: Packet) -> Port | None:
        """
        See L{Carrier.carry<twisted_ib.subnet.network.smi.Carrier.carry>}.
        """

    def take(self, port: Port, packet: Packet) -> bytes | None:
        """
        Hand a MAD to the subnet manager of this process, or to the device of a port or its own agents.

        @param port: the one that it arrived at.
        @return: as L{UmadServer.take}.
        """

    def switchPorts(self, lid: int | None) -> int:
        """
        @return: how many ports the switch with a LID has, and for L{None} the switch with the fewest; 254 if
            there is none.
        """

    def nodeInfo(self, port: Port) -> bytes:
        """
        @return: 64 octets.
        """

    def portInfo(self, port: Port, number: int) -> bytes:
        """
        @param number: a port of its node; C{port} itself for 0 or one that there is not.
        @return: 64 octets.
        """

    def partitions(self, port: Port) -> bytes:
        """
        @return: the first 32 P_Keys, 64 octets.
        """

    def setSM(self, port: Port, isSM: bool, isGone: bool = False) -> None:
        """
        Set or clear PortInfo.CapabilityMask.IsSM.

        @param isGone: whether its subnet manager has ended without a word, and may come back.
        """


@define(eq=False)
class _Client:
    number: int
    address: object
    port: Port
    queuePair: int
    #: Whether it has opened the port's C{issm}.
    manager: bool = False
    #: Classes of what it has sent.
    classes: set[int] = field(factory=set)


class UmadServer:
    """
    Serves ibsim's protocol.

    Messages that are dropped are counted:

      - C{umad_malformed}: another size, magic or type, or not a MAD;
      - C{umad_foreign}: the number of another client, or of none;
      - C{umad_refused}: a client too many, an unknown node, a second subnet manager;
      - C{umad_wrong_queue_pair}: subnet management not to queue pair 0, or another class to it;
      - C{umad_unclaimed}: nobody at its destination takes it;
      - C{umad_withheld}: OpenSM would end by it;
      - C{umad_overrun}: the client that it is for does not read.
    """

    def __init__(self, subnet: ISubnet, wire: IWire, count: Callable[[str], object]) -> None:
        """
        @param count: called with the name of each loss.
        """
        self._subnet = subnet
        self._wire = wire
        self._count = count
        #: In the order of their arrival.
        self._clients: dict[int, _Client] = {}

    @property
    def clients(self) -> tuple[int, ...]:
        """
        The numbers of all clients, the newest last.
        """
        return tuple(self._clients)

    # -- control

    def control(self, address: object, octets: bytes) -> bytes | None:
        """
        A control message arrived.

        @param address: its sender's; a client keeps to the one that it has connected from.
        @return: the reply, if it is one that has one.
        """
        if len(octets) != CONTROL.size:
            self._count("umad_malformed")
            return None
        magic, number, kind, length, data = CONTROL.unpack(octets)
        if magic != MAGIC:
            self._count("umad_malformed")
            return None
        if kind == CONNECT:
            answer = self._connect(address, data)
        else:
            client = self._clients.get(number)
            action = _CONTROLS.get(kind)
            if client is None or client.address != address:
                self._count("umad_foreign")
                answer = None
            elif action is None:
                self._count("umad_malformed")
                answer = None
            else:
                answer = action(self, client, data)
        if answer is None:
            kind, answer = ERROR, data
        return CONTROL.pack(magic, number, kind, length, answer)

    def _connect(self, address: object, data: bytes) -> bytes | None:
        identity, queuePair, manager, name = CLIENT.unpack_from(data)
        for each in list(self._clients.values()):
            if each.address == address:
                self.gone(each.number)
        port = self._subnet.find(name.split(b"\0")[0].decode("utf-8", "replace"))
        number = next((each for each in range(UMAD_CLIENTS) if each not in self._clients), None)
        if number is None or port is None or (manager and self._managed(port, None)):
            self._count("umad_refused")
            return None
        if not self._wire.attach(number, identity):
            self._count("umad_refused")
            return None
        client = self._clients[number] = _Client(number, address, port, queuePair)
        if manager:
            self._setManager(client, True)
        return CLIENT.pack(number, queuePair, manager, self._subnet.name(port).encode()[:31])

    def _managed(self, port: Port, client: _Client | None) -> bool:
        # OpenSM and ibsim agree that a node has one subnet manager.
        return any(
            each.manager and each is not client and each.port.node is port.node
            for each in self._clients.values()
        )

    def _setManager(self, client: _Client, manager: bool, isGone: bool = False) -> None:
        if client.manager is not manager:
            client.manager = manager
            self._subnet.setSM(client.port, manager, isGone)

    def _disconnect(self, client: _Client, data: bytes) -> bytes:
        self._setManager(client, False)
        self.gone(client.number)
        return data

    def _getVendor(self, client: _Client, data: bytes) -> bytes:
        info = self._subnet.nodeInfo(client.port)
        # NodeInfo: VendorID, DeviceID, Revision (IBTA vol. 1 14.2.5.3); a version of firmware as ibsim's.
        fields = (info[37:40], info[30:32], info[32:36])
        return _VENDOR.pack(*(int.from_bytes(each, "big") for each in fields), 1)

    def _getGID(self, client: _Client, data: bytes) -> bytes:
        return self._subnet.portInfo(client.port, 0)[8:16] + client.port.guid.to_bytes(8, "big")

    def _setIsSM(self, client: _Client, data: bytes) -> bytes | None:
        manager = _ISSM.unpack_from(data)[0] != 0
        if manager and self._managed(client.port, client):
            self._count("umad_refused")
            return None
        self._setManager(client, manager)
        return data

    def gone(self, number: int) -> None:
        """
        A client has ended; harmless if there is none with this number.
        """
        client = self._clients.pop(number, None)
        if client is not None:
            self._setManager(client, False, isGone=True)
            self._wire.detach(number)

    def removed(self, node: Node) -> None:
        """
        A node is no longer there: its clients are detached.
        """
        for client in list(self._clients.values()):
            if client.port.node is node:
                self.gone(client.number)

    # -- MADs

    def received(self, number: int, octets: bytes) -> None:
        """
        A message of a client arrived.
        """
        client = self._clients.get(number)
        if client is None:
            self._count("umad_foreign")
            return
        packet = self._parse(client, octets)
        if packet is None:
            return
        mad = packet.octets
        client.classes.add(mad[CLASS_AT])
        arrived = self._subnet.carry(client.port, packet)
        if arrived is not None:
            response = self.take(arrived, packet)
            if response is None:
                return
            if response and self._back(client, arrived, packet, response):
                return
        if not isResponse(mad[METHOD_AT]):
            self._bounce(client, octets, packet)

    def _parse(self, client: _Client, octets: bytes) -> Packet | None:
        if len(octets) != MESSAGE.size:
            self._count("umad_malformed")
            return None
        dlid, slid, destination, source, _, length, mad = MESSAGE.unpack(octets)
        base, class_, _, method, _, _, transaction, _, _, _ = HEADER.unpack_from(mad)
        directed = class_ == SUBNET_DIRECTED
        smp = bytearray(mad)
        # In a directed route ibsim's messages have hop pointer 0, whatever the direction.
        if length > MAD_BYTES or base != BASE_VERSION or (directed and smp[HOP_POINTER_AT]):
            self._count("umad_malformed")
            return None
        if (queuePairOf(class_) == SMI_QPN) != (destination == SMI_QPN):
            self._count("umad_wrong_queue_pair")
            return None
        if directed and isReturning(smp):
            smp[HOP_POINTER_AT] = smp[HOP_COUNT_AT] + 1 & 0xFF
        if not isResponse(method):
            transaction = transaction & _TRANSACTION | client.number << _CLIENT_SHIFT
            smp[8:16] = transaction.to_bytes(8, "big")
        # An adapter fills in the source LID: a program sends in the name of no other port.
        if directed and dlid == PERMISSIVE_LID:
            slid = PERMISSIVE_LID
        elif not client.port.hasLID(slid):
            slid = client.port.lid
        return Packet(slid, dlid, source, destination, smp, length, _ROOM)

    def _bounce(self, client: _Client, octets: bytes, packet: Packet) -> None:
        dlid, slid, destination, source, _, length, mad = MESSAGE.unpack(octets)
        # With the transaction id of the client's own request, and its number.
        mad = mad[:8] + bytes(packet.octets[8:16]) + mad[16:]
        self._send(client, MESSAGE.pack(dlid, slid, destination, source, TIMED_OUT, length, mad))

    def _back(self, client: _Client, port: Port, request: Packet, response: bytes) -> bool:
        packet = responded(request, response)
        arrived = self._subnet.carry(port, packet)
        return (
            arrived is not None and arrived.node.end(arrived) is client.port and self._deliver(client, packet)
        )

    def take(self, port: Port, packet: Packet) -> bytes | None:
        """
        Hand a MAD to a client, or to others at the port: L{ISubnet.take}.

        @param port: the one that it arrived at.
        @return: the response of these; no octets if nobody takes it, or if they do not answer; L{None} if
            there is nothing to wait for.
        """
        mad = packet.octets
        client = next(self._takers(port.node.end(port), packet), None)
        if client is not None and isControl(mad):
            return None
        if client is not None and self._endsOpenSM(mad):
            self._count("umad_withheld")
            return b""
        if client is not None:
            return None if self._deliver(client, packet) else b""
        complete(packet)
        response = self._subnet.take(port, packet)
        if response == b"":
            self._count("umad_unclaimed")
        return response

    def _endsOpenSM(self, mad: bytearray) -> bool:
        # OpenSM 3.3.23 (osm_sa_slvl_record.c), asked for the SLtoVLMappingTableRecords of an input or output
        # port that a switch does not have, reads behind the tables of that switch.
        if (
            mad[CLASS_AT] != SUBNET_ADMINISTRATION
            or mad[16:18] != _SL_TO_VL
            or mad[METHOD_AT] not in _QUERIES
        ):
            return False
        components = mad[55]
        lid = int.from_bytes(mad[56:58], "big") if components & 1 else None
        ports = max(mad[58] if components & 2 else 0, mad[59] if components & 4 else 0)
        return ports > self._subnet.switchPorts(lid)

    def _takers(self, port: Port, packet: Packet) -> Iterator[_Client]:
        mad = packet.octets
        class_ = mad[CLASS_AT]
        if packet.isRepress:
            return iter(())
        clients = (each for each in reversed(self._clients.values()) if each.port is port)
        # libumad2sim ends its program if that has no agent for the class of a MAD.
        taker = packet.taker
        if taker is Taker.REQUESTER:
            number = int.from_bytes(mad[8:10], "big")
            return (each for each in clients if each.number == number and class_ in each.classes)
        if packet.destination > 1:
            return (
                each for each in clients if each.queuePair == packet.destination and class_ in each.classes
            )
        if taker is Taker.PROGRAM:
            return (each for each in clients if each.classes <= {class_})
        if taker is Taker.MANAGER:
            # IsSM alone does not make a subnet manager: with SIM_SET_ISSM any tool has it.
            return (each for each in clients if each.manager and not SUBNET_CLASSES.isdisjoint(each.classes))
        return iter(())

    def _deliver(self, client: _Client, packet: Packet) -> bool:
        mad = packet.octets
        if mad[CLASS_AT] == SUBNET_DIRECTED:
            mad[HOP_POINTER_AT] = 0
        fields = packet.dlid, packet.slid, packet.destination, packet.source
        return self._send(client, MESSAGE.pack(*fields, 0, packet.length, bytes(mad)))

    def _send(self, client: _Client, message: bytes) -> bool:
        taken = self._wire.send(client.number, message)
        if not taken:
            self._count("umad_overrun")
        return taken


_CONTROLS: Final[dict[int, Callable[[UmadServer, _Client, bytes], bytes | None]]] = {
    DISCONNECT: UmadServer._disconnect,
    GET_PORT: lambda own, client, data: _PORT.pack(client.port.lid, client.port.state),
    GET_VENDOR: UmadServer._getVendor,
    GET_GID: UmadServer._getGID,
    GET_GUID: lambda own, client, data: client.port.guid.to_bytes(8, "big"),
    GET_NODEINFO: lambda own, client, data: own._subnet.nodeInfo(client.port),
    GET_PORTINFO: lambda own, client, data: own._subnet.portInfo(client.port, data[0]),
    SET_ISSM: UmadServer._setIsSM,
    GET_PKEYS: lambda own, client, data: own._subnet.partitions(client.port),
}


# A program gives RMPP to the kernel, whole and with an incomplete header (Linux C{user_mad.c}); libumad2sim
# carries the first 256 octets of it, and nobody cuts it into segments.  So here a program's transfer is one
# segment, for a device, which has RMPP itself; for another program it stays as it is.
def _headerOf(octets: bytearray) -> RMPPHeader | None:
    row = classHeader(octets[CLASS_AT])
    if row is None or row[0] not in TRANSFER_HEADERS:
        return None
    header = RMPP.parse(bytes(octets[HEADER_BYTES:_BODY]))
    return header if header.flags & ACTIVE else None


def complete(packet: Packet) -> None:
    """
    Make a transfer as a program gives it to the kernel one of a single segment; leave anything else.
    """
    octets = packet.octets
    header = _headerOf(octets)
    if header is None or header.version:
        return
    # Each segment has the header of its class, whatever the program says.
    least = HEADER_BYTES + (classHeader(octets[CLASS_AT]) or (None, 0))[1]
    size = max(packet.length, least) - _BODY
    octets[HEADER_BYTES:_BODY] = RMPP.pack(
        RMPPHeader(RMPP_VERSION, DATA, flags=ACTIVE | FIRST | LAST, segment=1, length=size)
    )


def isControl(octets: bytearray) -> bool:
    """
    @return: whether a MAD is an ACK, STOP or ABORT, which the kernel keeps from programs.
    """
    header = _headerOf(octets)
    return header is not None and header.version == RMPP_VERSION and header.type != DATA
