"""
C{ib0}: the C{fabric} of a port of a subnet.  Another fabric carries its records; the subnet decides who
reaches whom.

Besides:

  - C{paths}: paths between the ports of a subnet
"""
