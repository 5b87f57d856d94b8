"""
What carries operations from one HCA to another.

A fabric implements L{twisted_ib.hca.interfaces.IFabric} and makes a
L{Path<twisted_ib.hca.fabric.path.Path>} to each peer: begin there.  C{shm} lets two processes
find each other in a directory (C{rundirectory}, C{rendezvous}, C{search}), agree over a Unix
socket (C{handshake}, C{pairing}, C{liveness}), and then talk through rings in shared memory
(C{ring}, C{segment}) with doorbells for a peer that sleeps (C{doorbell}), or through that
socket (C{carrier}).  C{loopback} stays within the process.  Only C{registry} names fabrics.
"""
