"""
What carries operations from one HCA to another.

A fabric implements L{twisted_ib.hca.interfaces.IFabric} and makes a
L{Path<twisted_ib.hca.fabric.path.Path>} to each peer: begin there.  C{shm} lets two processes
find each other in a directory (C{rundirectory}, C{rendezvous}, C{search}), agree over a Unix
socket (C{handshake}, C{pairing}, C{liveness}), and then talk through rings in shared memory
(C{ring}, C{segment}) with doorbells for a peer that sleeps (C{doorbell}), or through that
socket (C{carrier}).  C{loopback} stays within the process.  C{packet} makes packets of records, by
L{twisted_ib.hca.transport}, and gives them to a link (L{ILink<twisted_ib.hca.interfaces.ILink>}):
C{roce}, UDP sockets.  What arrives goes through C{arrivals} to the queue pairs' paths
(C{packetpath}) and to queue pair 1 (C{general}); what leaves goes through C{outlet}.  Only
C{registry} names fabrics.
"""
