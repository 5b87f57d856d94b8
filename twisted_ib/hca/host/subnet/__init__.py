"""
A subnet that one process hosts, and the sockets by which programs of the host attach to it.
"""
