"""
C libraries written in Python: C{libibverbs.so.1}, C{librdmacm.so.1}, C{libibumad.so.3} over the software HCA.

An unmodified C program loads them in place of rdma-core's.  cffi's embedding mode makes shared objects whose
exported functions call Python functions, the I{handlers}; the memory of the program is that of the
interpreter.  Begin with L{functions<twisted_ib.cabi.functions>}: a table of each library's functions, from
which all else comes.
"""
