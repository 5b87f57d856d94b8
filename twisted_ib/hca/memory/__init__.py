"""
Protection domains, memory regions and memory windows (IBTA vol. 1 10.6).  Pure.

All rights are checked by L{twisted_ib.hca.memory.memory.Memory}, nowhere else.
"""
