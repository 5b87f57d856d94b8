"""
C libraries written in Python: C{libibverbs.so.1}, C{librdmacm.so.1}, C{libibumad.so.3} over the software HCA.

An unmodified C program loads them in place of rdma-core's.  cffi's embedding mode makes shared objects whose
exported functions call Python functions, the I{handlers}; the memory of the program is that of the
interpreter.  Begin with L{functions<twisted_ib.verbs.c.functions>}: a table of each library's functions, from
which all else comes.

Besides:

  - C{attend}: the thread that always attends
  - C{building}: building the shared objects from the tables of all libraries
  - C{chosen}: the device that a program is to use
  - C{cm}: librdmacm.so.1
  - C{errors}: errors of handlers as C has them
  - C{handles}: the structures that C programs hold
  - C{kept}: where built libraries are kept
  - C{library}: the start of a library in its process
  - C{pointers}: pointers of C, of any of the libraries
  - C{postings}: requests in memory of C, which programs post without Python
  - C{rings}: completions in memory of C, which programs poll without Python
  - C{rsocket}: streams of octets over RDMA WRITE, by the protocol of librdmacm's C{rsend} and C{rrecv}
  - C{sockaddr}: socket addresses as C has them
  - C{umad}: management datagrams of programs, such as OpenSM and infiniband-diags, at a device's port
  - C{verbs}: libibverbs.so.1
  - C{waiting}: waiting for events as programs do
"""
