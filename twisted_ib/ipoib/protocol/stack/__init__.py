"""
The pure part of a stack in user space: UDP and ICMP of both versions of IP, and their fragments.

Modules:

  - C{icmp}: ICMP of a host's own stack (RFC 792, RFC 1122 section 3.2.2, RFC 4443)
  - C{packets}: IP packets as a host's own stack has them
  - C{udp}: UDP datagrams over IPv4 and IPv6 (RFC 768, RFC 8200 section 8.1)
"""
