"""
C{shm0}: the fabric between processes of one host, through rings in shared memory.

C{shm} is the fabric.  Two processes agree over a Unix socket (C{peersocket}, L{twisted_ib.hca.host}) and then
write records into each other's C{ring}, which lies in a sealed C{segment}; a C{doorbell} wakes a peer that
sleeps. Where shared memory is not to be had the records go over that socket (C{socketpath}).
"""
