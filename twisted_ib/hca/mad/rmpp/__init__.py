"""
RMPP: transfers of more than one MAD's data (IBTA vol. 1 13.6), without I/O.

C{segments} has the codes and the format of segments, C{sender} and C{receiver} the machines of both ends of
one transfer.
"""
