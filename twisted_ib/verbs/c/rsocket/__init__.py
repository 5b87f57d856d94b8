"""
rsockets: streams of octets over RDMA WRITE, by the protocol of librdmacm's C{rsend} and C{rrecv}.

Begin with C{protocol}, which has no I/O; C{stream} drives it over verbs.  Datagrams are another protocol, and
are not here.

Besides:

  - C{descriptors}: stream sockets by their descriptors
  - C{memory}: their buffers, messages that are sent, and what programs have mapped
"""
