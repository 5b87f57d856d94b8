"""
Codecs of the InfiniBand wire formats: RoCEv2 packets and management datagrams (MADs).

Modules:

  - C{cm}: messages of the communication manager (IBTA vol. 1 chapter 12)
  - C{extended}: extended transport headers as values (IBTA vol. 1 9.3)
  - C{grh}: the headers in front of a datagram's payload
  - C{headers}: layouts of the transport headers, big endian as on the wire (IBTA vol. 1 9.2, 9.3)
  - C{icrc}: the invariant CRC (ICRC) at the end of a RoCEv2 packet (IBTA vol. 1 7.8.1, annex A17)
  - C{icrcflow}: the ICRC of many packets of a flow, fast (IBTA vol. 1 annex A17; L{twisted_ib.hca.wire.icrc}
    is the plain form)
  - C{lrh}: InfiniBand packets as they are on a link
  - C{mad}: management datagrams (IBTA vol. 1 13.4)
  - C{opcodes}: the opcodes of the BTH, and the form of a packet of each (IBTA vol. 1 9.2.1)
  - C{packet}: one packet from BTH to pad, as a value
  - C{rocev2}: InfiniBand transport in UDP over IP (IBTA vol. 1 annex A17)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    # PEP 562: who connects processes of one host needs the layouts of headers, and no packets.
    if name in __all__:
        from twisted_ib.hca.wire import extended, packet, rocev2
        from twisted_ib.hca.wire.mad import mad

        return next(vars(each)[name] for each in (extended, mad, packet, rocev2) if name in vars(each))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
