"""
Addresses and ports by which applications connect and listen.

  - C{addresses}: IP addresses and port numbers as applications write them
  - C{endpoints}: endpoints of all protocols, used as C{TCP4ServerEndpoint} and C{HostnameEndpoint} are
  - C{localports}: port numbers of active sides
  - C{resolution}: the destination of a connector
"""
