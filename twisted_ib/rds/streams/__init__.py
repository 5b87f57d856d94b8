"""
Byte streams over RDS datagrams, for Twisted's protocols and endpoints.  Begin with C{streamsocket}.
"""
