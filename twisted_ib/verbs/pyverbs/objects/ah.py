"""
Address handles.  Source: rdma-core 65, C{pyverbs/addr.pyx}, C{libibverbs/verbs.c}.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

from twisted_ib.hca.base import attributes
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.addr import GRH, AHAttr, GlobalRoute
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, closing, verb
from twisted_ib.verbs.pyverbs.base.wc import WC
from twisted_ib.verbs.pyverbs.enums.queues import ibv_wc_flags
from twisted_ib.verbs.pyverbs.objects.pd import PD

_GRH_BYTES = 40
#: IP versions, the offset of an IPv4 header in the 40 octets of a GRH, and the prefix of an IPv4-mapped
#: address (RFC 4291 section 2.5.5.2).
_IPV4, _IPV6 = 4, 6
_IPV4_AT = 20
_MAPPED = bytes(10) + b"\xff\xff"
# For replies: the header's hop limit has been counted down on its way here.
_HOPS = 0xFF


def addressVector(attr: AHAttr, device: Device, message: str) -> AddressVector:
    """
    @param device: whose port it is sent from.
    @param message: the verb, for the error.
    @return: the address, as the core has it.
    @raise PyverbsRDMAError: it has no GRH, or no such port or source GID (EINVAL).
    """
    # IBTA vol. 1 annex A17: RoCE addresses are GIDs; the port says so by IBV_QPF_GRH_REQUIRED.
    isGlobal = bool(attr.is_global)
    isInfiniBand = device.port.linkLayer is LinkLayer.INFINIBAND
    check(isGlobal or isInfiniBand, f"{message}: an address needs a GRH here")
    check(attr.port_num == attributes.PORT, f"{message}: there is no port {attr.port_num}")
    if not isGlobal:
        return AddressVector(0, lid=attr.dlid, serviceLevel=attr.sl & 0xF, port=attr.port_num, isGlobal=False)
    route = attr.gr
    # Linux core/verbs.c, rdma_check_ah_attr: an empty slot of the table is as bad as none.  GID 0 is always
    # there; the host's addresses are read for the others.
    isThere = not route.sgid_index or 0 < route.sgid_index < len(device.gids())
    check(isThere, f"{message}: there is no GID {route.sgid_index}")
    return AddressVector(
        gid=int(IPv6Address(bytes.fromhex(route.dgid.replace(":", "")))),
        sourceIndex=route.sgid_index,
        # 20 bits in the header; C's field has 32.
        flowLabel=route.flow_label & 0xFFFFF,
        hopLimit=route.hop_limit,
        trafficClass=route.traffic_class,
        port=attr.port_num,
        lid=attr.dlid,
        serviceLevel=attr.sl & 0xF,
    )


def addressAttr(vector: Any) -> AHAttr:
    """
    @param vector: an address, as the core has it, or something else.
    @return: the address, as verbs have it; zeros for something else.
    """
    if not isinstance(vector, AddressVector):
        return AHAttr(port_num=0)
    if not vector.isGlobal:
        return AHAttr(vector.lid, vector.serviceLevel, 0, 0, 0, vector.port)
    route = GlobalRoute(None, vector.flowLabel, vector.sourceIndex, vector.hopLimit, vector.trafficClass)
    # Set as text: GlobalRoute's parameter takes what a program may give.
    route.dgid = vector.gid.to_bytes(16, "big").hex(":", 2)
    return AHAttr(vector.lid, vector.serviceLevel, 0, 0, 1, vector.port, route)


def addressOfSender(wc: WC, grh: GRH, port_num: int) -> AHAttr:
    """
    The address for replies to a datagram: C{ibv_init_ah_from_wc}.

    @param grh: the datagram's header.
    @param port_num: the port it arrived at.
    """
    # Unlike libibverbs/verbs.c, which looks up the GID that the datagram was sent to, the source is GID 0.
    header = grh.version_tclass_flow
    route = GlobalRoute(flow_label=header & 0xFFFFF, hop_limit=_HOPS, traffic_class=header >> 20 & 0xFF)
    route.dgid = grh.sgid
    return AHAttr(wc.slid, wc.sl, wc.dlid_path_bits, 0, 1, port_num, route)


def readGRH(raw: bytes) -> GRH:
    """
    @param raw: the first 40 octets of a datagram's receive buffer.
    @return: the header.  An IPv4 header, in the last 20 octets, is converted; its addresses become GIDs.
    """
    if len(raw) < _GRH_BYTES:
        raise PyverbsUserError(f"A GRH has {_GRH_BYTES} octets, not {len(raw)}")
    # libibverbs/verbs.c get_grh_header_version: RoCEv2 over IPv4 leaves 20 octets free and puts the IPv4
    # header behind them (Linux rxe_resp.c, union rdma_network_hdr).
    if raw[0] >> 4 != _IPV6 and raw[_IPV4_AT] >> 4 == _IPV4:
        return _readIPv4(raw[_IPV4_AT:_GRH_BYTES])
    # IPv6's layout, RFC 8200 section 3.
    grh = GRH(
        version_tclass_flow=int.from_bytes(raw[:4], "big"),
        paylen=int.from_bytes(raw[4:6], "big"),
        next_hdr=raw[6],
        hop_limit=raw[7],
    )
    grh.sgid = raw[8:24].hex(":", 2)
    grh.dgid = raw[24:40].hex(":", 2)
    return grh


def _readIPv4(raw: bytes) -> GRH:
    # RFC 791 section 3.1: octet 1 is the TOS, 2 and 3 the total length, 8 the TTL, 9 the protocol.
    grh = GRH(
        version_tclass_flow=_IPV6 << 28 | raw[1] << 20,
        paylen=max(int.from_bytes(raw[2:4], "big") - len(raw), 0),
        next_hdr=raw[9],
        hop_limit=raw[8],
    )
    grh.sgid = (_MAPPED + raw[12:16]).hex(":", 2)
    grh.dgid = (_MAPPED + raw[16:20]).hex(":", 2)
    return grh


def _grhAt(address: int) -> bytes:
    # pyverbs passes a pointer; here it is an address of some region.
    for device in hub.devices:
        for region in device.memory.regions.values():
            start = address - region.address
            if 0 <= start <= region.length - _GRH_BYTES:
                return bytes(region.view[start : start + _GRH_BYTES])
    raise PyverbsUserError(f"No memory region has a GRH at {address:#x}")


class AH(VerbsObject):
    """
    An address handle: the destination of datagrams (IBTA vol. 1 11.2.2).
    """

    rank = 10

    def __init__(self, pd: PD, **kwargs: Any) -> None:
        """
        @keyword attr: the address, an L{AHAttr}; or, in its place, the sender of a datagram by
        @keyword wc: the L{WC} of its receive,
        @keyword grh: its header: a L{GRH}, the octets, or the address of the receive buffer, and
        @keyword port_num: the port it arrived at.
        @raise PyverbsRDMAError: the address is invalid or has no GRH (EINVAL), or there are too many handles
            (ENOMEM).
        """
        super().__init__()
        self._create(checked(pd, PD), kwargs)

    @verb("Failed to create AH")
    def _create(self, pd: PD, given: dict[str, Any]) -> None:
        pd._check()
        device = pd._device
        if "attr" in given:
            attr = checked(given["attr"], AHAttr)
        else:
            wc = checked(given["wc"], WC)
            # Without IBV_WC_GRH the first 40 octets of the buffer are not a header, but whatever was there
            # before.
            if wc.wc_flags & ibv_wc_flags.IBV_WC_GRH:
                grh = given["grh"]
                if isinstance(grh, int):
                    grh = _grhAt(grh)
                if not isinstance(grh, GRH):
                    grh = readGRH(bytes(grh))
                attr = addressOfSender(wc, grh, given["port_num"])
            else:
                isLocal = device.port.linkLayer is LinkLayer.INFINIBAND
                check(isLocal, "Failed to create AH: the WC has no GRH")
                attr = AHAttr(wc.slid, wc.sl, wc.dlid_path_bits, 0, 0, given["port_num"])
        vector = addressVector(attr, device, "Failed to create AH")
        self._core = core = device.objects.createAddressHandle(pd._core, vector)
        self.pd: PD | None = pd
        self._opened(closing(device, device.objects.destroyAddressHandle, core), pd)

    @property
    def ah(self) -> int:
        """
        An integer in place of the C pointer.
        """
        return id(self)

    def _closed(self) -> None:
        self.pd = None
