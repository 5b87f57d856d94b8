"""
RDS paths: the reliable message queues between two addresses, above whatever connection carries them.  Begin
with C{path}.
"""
