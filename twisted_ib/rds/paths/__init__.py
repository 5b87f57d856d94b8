"""
RDS paths: the reliable message queues between two addresses, above whatever connection carries them, and the
network that has them.  Begin with C{path}.

Besides:

  - C{carrier}: the interfaces between a path and the connections that carry its messages
  - C{loopback}: the loopback path between two addresses of one process, as the kernel's loopback transport
    (Linux C{net/rds/loop.c})
  - C{network}: the state that all RDS sockets of one process share on one device
  - C{rdmaoperations}: RDMA and atomic operations between RDS sockets
"""
