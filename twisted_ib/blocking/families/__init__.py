"""
Blocking sockets whose family is none of the kernel's.

  - C{gids}: streams of SDP between GIDs, by C{(gid, service)}, without the kernel's TCP and without rules
"""
