"""
ClassPortInfo, the attribute that every general management class has (IBTA vol. 1 13.4.8.1).
"""

from __future__ import annotations

from typing import ClassVar, Final

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits

#: RespTimeValue of the classes that this package serves: 1.07 s at most, as ibsim 0.10 has it.
RESPONSE_TIME: Final = 0x12


@frozen(kw_only=True)
class ClassPortInfo(Attribute):
    """
    The capabilities of a class at a port, and the addresses of its requests and of its traps.

    @ivar respTimeVal: its answers take at most 4.096 us times 2 to this power.
    """

    ID: ClassVar[int] = 0x0001
    OCTETS: ClassVar[int] = 72

    baseVersion: int = bits(0, 8, default=1)
    classVersion: int = bits(1, 8)
    capabilityMask: int = bits(2, 16)
    capabilityMask2: int = bits(4, 27)
    respTimeVal: int = bits(7, 5, 4)
    redirectGID: int = bits(8, 128)
    redirectTC: int = bits(24, 8)
    redirectSL: int = bits(25, 4)
    redirectFL: int = bits(25, 20, 3)
    redirectLID: int = bits(28, 16)
    redirectPKey: int = bits(30, 16)
    redirectQP: int = bits(33, 24)
    redirectQKey: int = bits(36, 32)
    trapGID: int = bits(40, 128)
    trapTC: int = bits(56, 8)
    trapSL: int = bits(57, 4)
    trapFL: int = bits(57, 20, 3)
    trapLID: int = bits(60, 16)
    trapPKey: int = bits(62, 16)
    trapHL: int = bits(64, 8)
    trapQP: int = bits(65, 24)
    trapQKey: int = bits(68, 32)
