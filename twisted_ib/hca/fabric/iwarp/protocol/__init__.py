"""
The protocols of iWARP, from TCP's octets up: MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040).

Pure: octets, records and a clock's reading in, octets and records out.

Modules:

  - C{ddp}: the headers of DDP and RDMAP (RFC 5041 section 4, RFC 5040 section 4)
  - C{mpa}: MPA's Request and Reply frames, its constants, and its CRC (RFC 5044 section 7.1, RFC 6581)
  - C{mpastream}: ULPDUs in a TCP stream
  - C{reads}: READs of one stream, in both directions
  - C{receiving}: DDP segments as records of the core (RFC 5040, RFC 5041)
  - C{sending}: records of the core as DDP segments (RFC 5040, RFC 5041)
  - C{startup}: the exchange of Request and Reply (RFC 5044 section 7.1, RFC 6581)
  - C{terminate}: how a stream ends with an error (RFC 5040 section 4.8)
"""
