"""
Protection domains, memory regions and memory windows (IBTA vol. 1 10.6), and the random numbers of their
keys.  Pure.

All rights are checked by L{twisted_ib.hca.memory.memory.Memory}, nowhere else.
"""
