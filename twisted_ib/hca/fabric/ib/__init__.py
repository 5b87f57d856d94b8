"""
C{ib0}: the fabric of a port of a subnet.  Another fabric carries its records; the subnet decides who reaches
whom.
"""
