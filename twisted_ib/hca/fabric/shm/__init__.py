"""
C{shm0}: the fabric between processes of one host, through rings in shared memory.

C{shm} is the fabric.  Two processes agree on layout and descriptors over a Unix socket (C{peersocket},
L{twisted_ib.hca.host}).  Each then writes records into its own C{ring}, which lies in a sealed memory file
(C{segment}) that the peer maps for reading; a C{doorbell} wakes a peer that sleeps.  Without shared memory
the records travel over that socket (C{socketpath}).

Besides:

  - C{hotpaths}: the progress of paths between processes
  - C{listeners}: listening sockets and admission limits
  - C{redials}: dials that are tried again
  - C{sharedregions}: registered memory that a peer of the same user may map, for zero-copy SEND, WRITE and
    READ, or write to
"""
