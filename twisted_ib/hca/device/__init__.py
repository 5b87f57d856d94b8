"""
One HCA: a fabric, its queue pairs and memory, its connections, its progress.  No Twisted, no threads.

Start with L{twisted_ib.hca.device.device.Device}.  C{connections} has the listening services and the
connections, C{addressing} resolves addresses to paths, C{registry} names the devices and is the only module
that names fabrics.
"""
