"""
One HCA: a fabric, its queue pairs and memory, its connections, its progress.  No Twisted, no threads.

Begin with L{twisted_ib.hca.device.device.Device}.  C{connections} has the services it listens on and the
connections it has, C{addressresolution} finds the path to the HCA that a GID names, C{registry} knows devices
by name and is the only module that names fabrics.
"""
