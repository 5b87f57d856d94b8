"""
Blocking sockets over SDP: the modules C{socket}, C{select} and C{selectors} of the standard library, with the
same rules and switch as the C{ib} reactor.

C{socket}, C{select}: the calls; C{loop}: the private reactor that a thread drives while it blocks;
C{connection}, C{connecting}, C{listening}: what a socket is over SDP; C{patch}: programs that know nothing of
it.
"""
