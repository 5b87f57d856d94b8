"""
Protection domains, memory regions and windows: which peer may touch which bytes (IBTA vol. 1 10.6).  Pure.

All rights are checked by L{twisted_ib.hca.memory.memory.Memory}, nowhere else.
"""
