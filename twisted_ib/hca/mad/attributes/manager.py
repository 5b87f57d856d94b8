"""
SMInfo, by which subnet managers find each other (IBTA vol. 1 14.2.5.13).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits


class SMState(IntEnum):
    """
    SMInfo's SMState.
    """

    NOT_ACTIVE = 0
    DISCOVERING = 1
    STANDBY = 2
    MASTER = 3


@frozen(kw_only=True)
class SMInfo(Attribute):
    """
    A subnet manager.  The highest priority wins, of two with the same the lower GUID.
    """

    ID: ClassVar[int] = 0x0020
    OCTETS: ClassVar[int] = 21

    smInfoGuid: int = bits(0, 64)
    smInfoKey: int = bits(8, 64)
    smActivity: int = bits(16, 32)
    smPriority: int = bits(20, 4)
    smState: int = bits(20, 4, 3)
