"""
The Sockets Direct Protocol (IBTA vol. 1, annex A4): byte streams as TCP's, over reliable
queue pairs.

An application enters by C{strings} and C{endpoints}, or by C{port} (L{listenSDP
<twisted_ib.sdp.port.listenSDP>}, L{connectSDP<twisted_ib.sdp.port.connectSDP>}); C{transport}
is what its protocols write to.  Begin with C{transport}, then C{stream}, which moves bytes
between it and a queue pair.  What the messages say and in which order is in C{wire} and
C{machine}: no Twisted, no I/O.
"""
