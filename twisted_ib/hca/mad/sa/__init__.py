"""
The client of subnet administration: paths, multicast groups, services and events of a subnet (IBTA vol. 1
15).

L{client<twisted_ib.hca.mad.sa.client>} has what a program calls.

Besides:

  - C{queries}: requests of records, and what their responses say
  - C{registrations}: the registrations of a port with subnet administration
  - C{registry}: the registrations of one port
"""
