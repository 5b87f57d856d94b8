"""
Protection domains, memory regions and memory windows (IBTA vol. 1 10.6), and the random numbers of their
keys.  Pure.

All rights are checked by L{twisted_ib.hca.memory.memory.Memory}, nowhere else.

Modules:

  - C{access}: access rights on memory
  - C{domains}: protection domains
  - C{keys}: random numbers as names
  - C{memory}: the memory of one device, and its regions
  - C{windows}: grant peers access to a part of a memory region for a while
"""
