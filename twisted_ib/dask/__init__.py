"""
Dask over C{ib:}: the backend of C{ib://} addresses for C{distributed}, which finds it by its entry point.

Modules:

  - C{backend}: addresses, devices, listeners and connectors
  - C{comm}: a connection, as C{distributed} wants it
  - C{direct}: frames that are copied from the memory of a process of this host
  - C{memory}: of frames that are read, which is used again
  - C{messages}: what is on the wire
  - C{stream}: a connection, as Twisted wants it, and the memory that is lent over it
"""
