"""
A subnet manager (IBTA vol. 1 14): it discovers a subnet by directed-route SMPs, gives its ports LIDs and
P_Keys, its switches forwarding tables, and makes its links Active.

MADs and the time come in, MADs come out; it knows of the subnet only what the agents of its nodes answer.
C{manager} is the whole: C{requests} sends its SMPs, C{sweep} discovers, C{routing} and C{partitions}
decide, C{configuration} sets, C{election} settles with other managers.  C{model} is what it knows;
L{twisted_ib.subnet.sa} answers queries about it, by C{interfaces}.
"""
