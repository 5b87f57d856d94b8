"""
The InfiniBand communication manager (IBTA vol. 1 chapter 12).  Pure.

C{table} has all connections of an HCA.  One C{machine} is one connection: its C{states}, and in
C{transitions} what it does in each of them.  C{sidr} finds the queue pair behind a datagram service,
C{admission} bounds half-open connections, C{timers} says when to call again, C{transactions} gives messages
on packets their transaction ids.
"""
