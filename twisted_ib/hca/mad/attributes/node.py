"""
Subnet management attributes of a node (IBTA vol. 1 14.2.5.2, 14.2.5.3).
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, octets


@frozen(kw_only=True)
class NodeInfo(Attribute):
    """
    The kind of a node, its GUIDs, and the port that the request arrived at.

    @ivar portGuid: of the port of arrival; of a switch its node GUID, which is that of port 0.
    @ivar partCap: entries of the P_Key table of a CA's port, or of port 0 of a switch.
    @ivar localPort: the port of arrival.
    """

    ID: ClassVar[int] = 0x0011
    OCTETS: ClassVar[int] = 40

    baseVers: int = bits(0, 8, default=1)
    classVers: int = bits(1, 8, default=1)
    nodeType: int = bits(2, 8)
    numPorts: int = bits(3, 8)
    systemGuid: int = bits(4, 64)
    guid: int = bits(12, 64)
    portGuid: int = bits(20, 64)
    partCap: int = bits(28, 16)
    devId: int = bits(30, 16)
    revision: int = bits(32, 32)
    localPort: int = bits(36, 8)
    vendorId: int = bits(37, 24)


@frozen(kw_only=True)
class NodeDescription(Attribute):
    """
    @ivar description: text, padded with zeros.
    """

    ID: ClassVar[int] = 0x0010
    OCTETS: ClassVar[int] = 64

    description: bytes = octets(0, 64)

    @property
    def text(self) -> str:
        """
        The text, as ibnetdiscover prints it.
        """
        return self.description.split(b"\0", 1)[0].decode("utf-8", "replace")


@frozen(kw_only=True)
class VendorDiag(Attribute):
    """
    Diagnostics of a vendor.

    @ivar nextIndex: the modifier that asks for more of them; 0 if these are the last.
    """

    ID: ClassVar[int] = 0x0030
    OCTETS: ClassVar[int] = 64

    nextIndex: int = bits(0, 16)
    diagData: bytes = octets(2, 62)
