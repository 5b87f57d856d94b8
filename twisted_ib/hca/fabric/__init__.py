"""
Fabrics: they carry operations from one HCA to another.

A fabric implements L{IFabric<twisted_ib.hca.base.interfaces.IFabric>}: its progress, its directory and its
connections.  It makes an L{IPath<twisted_ib.hca.base.interfaces.IPath>} to each peer: begin there.  Each
fabric is a folder: C{shm} between processes of a host, C{loopback} within a process, C{roce} and
C{iwarp} between hosts, and C{hardware} through an adapter of this host.
Only L{twisted_ib.hca.device.registry} names fabrics.

A new fabric is a folder here and its row there; C{setup.cfg} has its name in two lists, which a test compares
with the rows.  One of elsewhere adds its row itself, as L{twisted_ib.subnet.row} and C{tests/hca/fabric/toy}.

Besides:

  - C{base}: the common part of fabrics
"""
