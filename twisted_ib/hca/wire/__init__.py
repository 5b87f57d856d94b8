"""
Codecs of the InfiniBand wire formats: RoCEv2 packets and management datagrams (MADs).
"""

from twisted_ib.hca.wire.extended import (
    AcknowledgeHeader,
    AtomicHeader,
    AtomicResult,
    DatagramHeader,
    FlushHeader,
    ImmediateData,
    InvalidateHeader,
    MemoryHeader,
)
from twisted_ib.hca.wire.mad.mad import Mad, decodeMAD, encodeMAD
from twisted_ib.hca.wire.packet import BaseHeader, Packet
from twisted_ib.hca.wire.rocev2 import decodePacket, encodePacket

__all__ = [
    "AcknowledgeHeader",
    "AtomicHeader",
    "AtomicResult",
    "BaseHeader",
    "DatagramHeader",
    "FlushHeader",
    "ImmediateData",
    "InvalidateHeader",
    "Mad",
    "MemoryHeader",
    "Packet",
    "decodeMAD",
    "decodePacket",
    "encodeMAD",
    "encodePacket",
]
