"""
Foundations of the verbs objects: lock, progress engine, errors, values as wide as C's.  Begin with C{hub}.

Modules:

  - C{addr}: a GID, a global route, and the attributes of an address handle
  - C{base}: base classes of verbs objects, unsigned integers of C's widths, and printing
  - C{devicetext}: text for the codes of devices and ports, by pyverbs' function names
  - C{errors}: exceptions of verbs, with pyverbs' names (rdma-core 65, C{pyverbs/pyverbs_error.py})
  - C{mem_alloc}: C's memory functions, for programs that work with addresses
  - C{posting}: conversion of verbs' work requests and their chains to those of the core
  - C{verb}: decorators and the base class for verbs
  - C{wc}: the work completion, a plain value
  - C{wr}: work requests and scatter/gather elements, as plain values
"""
