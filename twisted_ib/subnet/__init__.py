"""
An InfiniBand subnet in software: its nodes and links, who manages it, who hosts it, and the ports that attach
to it.

Each folder is one part of it, and imports from those that follow: C{row} adds the fabric C{ib} to the
adapter's, whose devices are ports of a subnet (C{port}); C{hosting} is a subnet in a process, and the
sockets by which others attach to it. C{sa} answers queries about a subnet for the manager of C{sm}, C{sma}
are the agents of its nodes, and C{network} is the way of a datagram through it.
"""
