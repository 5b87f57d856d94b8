"""
C{ib-ping}: rping, ucmatose, udaddy, mckey and rds-ping, with their protocols and option letters.  Begin with
C{ping}.

Besides:

  - C{device}: the choice of a command's device, which may be given by an address instead of a configured name
  - C{line}: a connection identifier with its queue pair, for the programs of C{ib-ping}
  - C{messages}: messages over several connections: the server sends, then the client, then the server
    disconnects
  - C{rds}: C{rds-ping}, which checks whether a peer's RDS answers
  - C{rounds}: the protocol of C{rping}, both ends of one connection
  - C{station}: the common parts of C{ib-ping}'s programs
  - C{transfers}: the command lines of C{ib-ping --as}
"""
