"""
Address handles.  Source: rdma-core 65, C{pyverbs/addr.pyx}, C{libibverbs/verbs.c}.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

from twisted_ib.hca.base import attributes
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.verbs.base.addr import GRH, AHAttr, GlobalRoute
from twisted_ib.hca.verbs.base.base import checked
from twisted_ib.hca.verbs.base.errors import PyverbsUserError
from twisted_ib.hca.verbs.base.hub import hub
from twisted_ib.hca.verbs.base.verb import VerbsObject, check, closing, verb
from twisted_ib.hca.verbs.base.wc import WC
from twisted_ib.hca.verbs.enums.queues import ibv_wc_flags
from twisted_ib.hca.verbs.objects.deviceattr import portAttr
from twisted_ib.hca.verbs.objects.pd import PD

_GRH_BYTES = 40
#: IP versions, where the IPv4 header is, and what makes a GID of an IPv4 address.
_IPV4, _IPV6 = 4, 6
_IPV4_AT = 20
_MAPPED = bytes(10) + b"\xff\xff"
_HOPS = 0xFF


def addressVector(attr: AHAttr, message: str) -> AddressVector:
    """
    @param attr: an address, as verbs have it.
    @param message: which verb it is for.

    @return: the same as the core has it.

    @raise PyverbsRDMAError: it has no GID, or no such port or source (EINVAL).
    """
    check(bool(attr.is_global), f"{message}: an address needs a GRH here")
    check(attr.port_num == attributes.PORT, f"{message}: there is no port {attr.port_num}")
    route = attr.gr
    check(route.sgid_index < portAttr().gid_tbl_len, f"{message}: there is no GID {route.sgid_index}")
    return AddressVector(
        gid=int(IPv6Address(bytes.fromhex(route.dgid.replace(":", "")))),
        sourceIndex=route.sgid_index,
        flowLabel=route.flow_label & 0xFFFFF,
        hopLimit=route.hop_limit,
        trafficClass=route.traffic_class,
        port=attr.port_num,
        lid=attr.dlid,
        serviceLevel=attr.sl & 0xF,
        isGlobal=True,
    )


def addressAttr(vector: Any) -> AHAttr:
    """
    @param vector: an address as the core has it, or something else.

    @return: the same as verbs have it; all zeros for something else.
    """
    if not isinstance(vector, AddressVector):
        return AHAttr(port_num=0)
    route = GlobalRoute(None, vector.flowLabel, vector.sourceIndex, vector.hopLimit, vector.trafficClass)
    route.dgid = vector.gid.to_bytes(16, "big").hex(":", 2)
    return AHAttr(vector.lid, vector.serviceLevel, 0, 0, 1, vector.port, route)


def addressOfSender(wc: WC, grh: GRH, port_num: int) -> AHAttr:
    """
    Where an answer goes.

    @param wc: the completion of a datagram's receive.
    @param grh: the datagram's header.
    @param port_num: the port it came to.

    @return: the sender's address.
    """
    header = grh.version_tclass_flow
    route = GlobalRoute(flow_label=header & 0xFFFFF, hop_limit=_HOPS, traffic_class=header >> 20 & 0xFF)
    route.dgid = grh.sgid
    return AHAttr(wc.slid, wc.sl, wc.dlid_path_bits, 0, 1, port_num, route)


def readGRH(raw: bytes) -> GRH:
    """
    @param raw: the first 40 octets of a datagram's receive.

    @return: its header; of an IPv4 header in the second half, with its addresses as GIDs.
    """
    if len(raw) < _GRH_BYTES:
        raise PyverbsUserError(f"A GRH has {_GRH_BYTES} octets, not {len(raw)}")
    if raw[0] >> 4 != _IPV6 and raw[_IPV4_AT] >> 4 == _IPV4:
        return _readIPv4(raw[_IPV4_AT:_GRH_BYTES])
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
    """
    @param raw: an IPv4 header.

    @return: a GRH that says the same.
    """
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
    """
    @param address: of the first octet of a datagram's receive, in a region.

    @return: the 40 octets there.
    """
    for device in hub.devices:
        for region in device.memory.regions.values():
            start = address - region.address
            if 0 <= start <= region.length - _GRH_BYTES:
                return bytes(region.view[start : start + _GRH_BYTES])
    raise PyverbsUserError(f"No memory region has a GRH at {address:#x}")


class AH(VerbsObject):
    """
    An address handle: where datagrams go.

    @ivar pd: its protection domain.
    """

    rank = 10

    def __init__(self, pd: PD, **kwargs: Any) -> None:
        """
        Create an address handle.

        @keyword attr: the address, an L{AHAttr}; or in its place
        @keyword wc: the L{WC} of a datagram's receive, whose sender is meant,
        @keyword grh: and the datagram's header: a L{GRH}, the octets, or the address of the
            receive,
        @keyword port_num: and the port that it came to.

        @raise PyverbsRDMAError: the address has no GRH or cannot be (EINVAL), or there are too many
            (ENOMEM).
        """
        super().__init__()
        self._create(checked(pd, PD), kwargs)

    @verb("Failed to create AH")
    def _create(self, pd: PD, given: dict[str, Any]) -> None:
        pd._check()
        if "attr" in given:
            attr = checked(given["attr"], AHAttr)
        else:
            wc = checked(given["wc"], WC)
            check(bool(wc.wc_flags & ibv_wc_flags.IBV_WC_GRH), "Failed to create AH: the WC has no GRH")
            grh = given["grh"]
            if isinstance(grh, int):
                grh = _grhAt(grh)
            if not isinstance(grh, GRH):
                grh = readGRH(bytes(grh))
            attr = addressOfSender(wc, grh, given["port_num"])
        device = pd._device
        vector = addressVector(attr, "Failed to create AH")
        self._core = core = device.objects.createAddressHandle(pd._core, vector)
        self.pd: PD | None = pd
        self._opened(closing(device, device.objects.destroyAddressHandle, core), pd)

    @property
    def ah(self) -> int:
        """
        A number that stands for it.
        """
        return id(self)

    def _closed(self) -> None:
        self.pd = None
