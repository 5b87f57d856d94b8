"""
Blocking sockets over SDP: the modules C{socket}, C{select} and C{selectors} of the standard library, with the
same rules and switch as the C{ib} reactor.

C{socket}, C{select}: the calls; C{loop}: the private reactor that a thread drives while it blocks;
C{connection}, C{connecting}, C{listening}: what a socket is over SDP; C{patch}: programs that know nothing of
it.

Besides:

  - C{descriptors}: the descriptors of sockets over SDP
  - C{files}: calls of the operating system by descriptor, for sockets over SDP
  - C{families}: sockets whose family is none of the kernel's, L{AF_IB<twisted_ib.blocking.families.gids>}
  - C{moving}: the move of a connection that gains nothing over SDP to TCP
  - C{tls}: TLS over SDP for blocking sockets
  - C{waits}: one wait for sockets over SDP and descriptors of the kernel, for the calls of C{select}
"""
