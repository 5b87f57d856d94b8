"""
RDS paths: the reliable message queues between two addresses, above whatever connection carries them, and the
network that has them.  Begin with C{path}.
"""
