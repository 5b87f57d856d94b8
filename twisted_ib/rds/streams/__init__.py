"""
Streams over the datagrams of RDS, as Twisted's protocols use them.
"""
