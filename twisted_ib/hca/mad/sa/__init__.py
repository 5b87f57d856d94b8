"""
The client of subnet administration: paths, multicast groups, services and events of a subnet (IBTA vol. 1
15).

L{client<twisted_ib.hca.mad.sa.client>} has what a program calls.
"""
