"""
Fabrics: they carry operations from one HCA to another.

A fabric implements L{twisted_ib.hca.base.interfaces.IFabric} and makes a
L{Path<twisted_ib.hca.fabric.base.path.Path>} to each peer: begin there.  Each fabric is a folder: C{shm}
between processes of a host, C{loopback} within a process, C{roce} between hosts.  Only
L{twisted_ib.hca.device.registry} names fabrics.
"""
