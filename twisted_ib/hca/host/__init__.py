"""
How processes of one host find and authenticate each other: a directory of Unix sockets, and a handshake
over them.

Each HCA publishes C{entries}, a Unix socket and links to it for its services, in a C{rundirectory};
C{rendezvous} holds its own entries, C{search} finds those of others. C{handshake} has the messages,
C{fdpassing} sends them with descriptors, C{liveness} identifies a peer and watches its process.  By C{query}
commands ask a process what it has in use, and C{socketpage} is where they read what a busy one has.

Besides:

  - C{addresses}: IP addresses of this host, as text
  - C{neighbours}: whether the kernel knows the next hop to an address
  - C{libc}: the Linux calls that the shared-memory fabric needs, also where Python lacks them
  - C{processmemory}: the memory of other processes
"""
