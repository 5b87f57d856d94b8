"""
Addresses: a GID, a global route, and the attributes of an address handle.

A I{GID} is a port's address, 16 octets as in IPv6; a I{GRH} is the header with two of them.  Source:
rdma-core 65, C{pyverbs/addr.pyx}; IBTA vol. 1 4.1.1 (GID), 8.3 (GRH).
"""

from __future__ import annotations

import re

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked, table, u8, u16, u32
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError

# The one form of C{pyverbs/utils.py}; not the shortened ones of RFC 4291 section 2.2.
_GID = re.compile("[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){7}")


def _parse(text: str) -> bytes:
    if not _GID.fullmatch(text):
        raise PyverbsUserError(f"Invalid GID value ({text})")
    return bytes.fromhex(text.replace(":", ""))


class GID(PyverbsObject):
    """
    The address of a port.

    @ivar raw: its 16 octets, in network order.
    """

    def __init__(self, val: str | None = None) -> None:
        """
        @param val: eight groups of four hexadecimal digits with colons between; zeros if None.
        @raise PyverbsUserError: it is written otherwise.
        """
        self.raw = bytes(16) if val is None else _parse(val)

    @classmethod
    def of(cls, raw: bytes) -> GID:
        """
        @param raw: the 16 octets.
        """
        gid = cls()
        gid.raw = raw
        return gid

    @property
    def gid(self) -> str:
        """
        The GID as text: eight groups of four digits, in lower case.
        """
        return str(self)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = _parse(val)

    def __str__(self) -> str:
        return self.raw.hex(":", 2)


def _text(gid: GID | str | None) -> str:
    return str(gid if isinstance(gid, GID) else GID(gid))


@attrs.define(eq=False)
class GRH(PyverbsObject):
    """
    The global route header of a datagram (IBTA vol. 1 8.3): an IPv6 header's fields (RFC 8200 section 3).

    @ivar sgid: the source, as text; zeros if None was given; likewise C{dgid}, the destination.
    @ivar version_tclass_flow: version (4 bits), traffic class (8), flow label (20).
    @ivar paylen: octets from the end of this header to the end of the ICRC.
    @ivar next_hdr: 0x1B for a BTH, as in RoCEv1; 17, UDP, in RoCEv2.
    @ivar hop_limit: routers that may still forward it.
    """

    sgid: str = attrs.field(default=None, converter=_text)
    dgid: str = attrs.field(default=None, converter=_text)
    version_tclass_flow: int = attrs.field(default=0, converter=u32)
    paylen: int = attrs.field(default=0, converter=u16)
    next_hdr: int = attrs.field(default=0, converter=u8)
    hop_limit: int = attrs.field(default=1, converter=u8)

    def __str__(self) -> str:
        return table(
            [
                ("DGID", self.dgid),
                ("SGID", self.sgid),
                ("version tclass flow", self.version_tclass_flow),
                ("paylen", self.paylen),
                ("next header", self.next_hdr),
                ("hop limit", self.hop_limit),
            ]
        )


@attrs.define(eq=False)
class GlobalRoute(PyverbsObject):
    """
    The contents of the GRH that packets to an address get (C{struct ibv_global_route}).

    @ivar dgid: the destination, as text; zeros if None was given.
    @ivar flow_label: 20 bits.
    @ivar sgid_index: the source's index in the port's GID table.
    @ivar hop_limit: routers that may forward a packet.
    @ivar traffic_class: 8 bits, as in IPv6.
    """

    dgid: str = attrs.field(default=None, converter=_text)
    flow_label: int = attrs.field(default=0, converter=u32)
    sgid_index: int = attrs.field(default=0, converter=u8)
    hop_limit: int = attrs.field(default=1, converter=u8)
    traffic_class: int = attrs.field(default=0, converter=u8)

    def rows(self) -> list[tuple[str, object]]:
        """
        @return: names and values, without the destination.
        """
        return [
            ("flow label", self.flow_label),
            ("sgid index", self.sgid_index),
            ("hop limit", self.hop_limit),
            ("traffic class", self.traffic_class),
        ]

    def __str__(self) -> str:
        return table([("DGID", self.dgid), *self.rows()])


class _RouteField:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, attr: AHAttr, owner: type) -> int | None:
        return getattr(attr.gr, self.name) if attr.is_global else None

    def __set__(self, attr: AHAttr, value: int) -> None:
        # pyverbs/addr.pyx stores it even while it is not global, so that is_global may be set last.
        setattr(attr.gr, self.name, value)


@attrs.define(eq=False, init=False, slots=False)
class AHAttr(PyverbsObject):
    """
    The attributes of an address handle: the path to a peer (C{struct ibv_ah_attr}; IBTA vol. 1 11.2.2).

    @ivar dlid: the destination's LID; 0 on Ethernet.
    @ivar src_path_bits: added to the port's LID.
    @ivar static_rate: one of C{ibv_rate}.
    @ivar is_global: 1 if packets have a GRH.
    @ivar port_num: the local port, from 1 on.
    @ivar gr: the GRH's contents, valid if C{is_global}.  C{dgid}, C{flow_label}, C{sgid_index}, C{hop_limit}
        and C{traffic_class} are its fields; they read as None if not C{is_global}.
    @ivar path: the resolved path, if the communication manager has found it; with None the device resolves
        C{dgid}.  Not in pyverbs.
    """

    dlid: int = attrs.field(converter=u16)
    sl: int = attrs.field(converter=u8)
    src_path_bits: int = attrs.field(converter=u8)
    static_rate: int = attrs.field(converter=u8)
    is_global: int = attrs.field(converter=u8)
    port_num: int = attrs.field(converter=u8)
    gr: GlobalRoute

    flow_label = _RouteField()
    sgid_index = _RouteField()
    hop_limit = _RouteField()
    traffic_class = _RouteField()

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        """
        The parameters are the attributes, in pyverbs' order; C{gr} is copied, and ignored if not
        C{is_global}.

        @raise PyverbsUserError: C{is_global} without C{gr}.
        """
        self.dlid, self.sl, self.src_path_bits, self.static_rate = dlid, sl, src_path_bits, static_rate
        self.is_global, self.port_num = is_global, port_num
        self.path: object = None
        # Zeros, hop limit too, as the zeroed C structure: attributes that are not in use print as 0.
        self.gr = GlobalRoute(hop_limit=0)
        if self.is_global:
            if gr is None:
                raise PyverbsUserError("A global AHAttr needs gr, a GlobalRoute")
            self.gr = attrs.evolve(checked(gr, GlobalRoute))

    def copy(self) -> AHAttr:
        """
        @return: a deep copy of the attributes; the path is shared.
        """
        # is_global set afterwards: gr may be filled in although it is 0, and would be lost.
        other = AHAttr(self.dlid, self.sl, self.src_path_bits, self.static_rate, 0, self.port_num)
        other.is_global, other.path = self.is_global, self.path
        other.gr = attrs.evolve(self.gr)
        return other

    @property
    def dgid(self) -> str | None:
        """
        The destination, as text; None if not global.
        """
        return self.gr.dgid if self.is_global else None

    @dgid.setter
    def dgid(self, val: str) -> None:
        # pyverbs/addr.pyx: unlike the other route fields, a GID is ignored where there is no GRH.
        if self.is_global:
            self.gr.dgid = val

    def __str__(self) -> str:
        rows = [
            ("port num", self.port_num),
            ("sl", self.sl),
            ("source path bits", self.src_path_bits),
            ("dlid", self.dlid),
            ("static rate", self.static_rate),
            ("is global", self.is_global),
            *([("dgid", self.gr.dgid), *self.gr.rows()] if self.is_global else []),
        ]
        return table(rows, indent=2)
