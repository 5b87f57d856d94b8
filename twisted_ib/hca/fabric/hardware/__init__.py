"""
An adapter of this host, through the system's libibverbs and librdmacm: one queue pair of ours is one of the
adapter's, and the kernel makes the connections.

C{hardware} is the fabric, C{adapterpath} the path of a queue pair, C{connector} the connections over
C{rdmacm}, which is librdmacm; C{provider} loads the libraries.

Besides:

  - C{adapters}: finds an adapter's IP address
  - C{datagrams}: queue pairs of UD
  - C{outofband}: the path of a queue pair that its program connects by itself
  - C{registered}: memory that is registered
  - C{slots}: what the streams of a device receive into
  - C{window}: the receives of both ends of an RNIC's connection
"""
