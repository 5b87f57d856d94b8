"""
Values of attributes and their octets.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.hca.mad.attributes.node import LinearForwardingTable, SwitchInfo

#: Of a switch whose highest LID is 5: values, and their octets; zeros follow.
SWITCH_INFO = SwitchInfo(
    linearFdbCap=0x7800,
    mcastFdbCap=0x400,
    linearFdbTop=5,
    lifeTime=18,
    partEnforceCap=64,
    filterRawInbound=1,
    filterRawOutbound=1,
)
SWITCH_INFO_OCTETS = "7800000004000005000000900000004030"
LINEAR = LinearForwardingTable(ports=(255, 1, 0, 6, 2, 5, *(255,) * 58))
LINEAR_OCTETS = "ff0100060205" + "ff" * 58


class AttributeTestCase(SynchronousTestCase):
    """
    Checks of attributes.
    """

    def checkOctets(self, pairs: Iterable[tuple[Attribute, str]]) -> None:
        """
        Each value has its octets, which zeros follow, and they have the value.
        """
        for value, text in pairs:
            packed = bytes.fromhex(text).ljust(value.OCTETS, b"\0")
            self.assertEqual(value.pack().hex(), packed.hex())
            self.assertEqual(type(value).parse(packed), value)

    def checkFields(self, values: Iterable[Attribute]) -> None:
        """
        The values have each field of their classes once at least with something else than its default.
        """
        missing: dict[type[Attribute], set[str]] = {}
        for value in values:
            kind = type(value)
            left = missing.setdefault(kind, {each.name for each in layoutOf(kind).fields})
            left -= {name for name in left if getattr(value, name) != getattr(kind(), name)}
        self.assertEqual({kind: left for kind, left in missing.items() if left}, {})
