"""
The subnet management agent (IBTA vol. 1 14.2, 14.3).  C{agent} checks an SMP, and tells the subnet manager by
traps.  C{port} and C{node} get and set its attribute; the latter has the request that they work on.
"""
