"""
C{libibumad.so.3}: management datagrams of programs, such as OpenSM and infiniband-diags, at a device's port.
"""
