"""
The protocols of iWARP, from TCP's octets up: MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040).

Pure: octets, records and a clock's reading in, octets and records out.
"""
