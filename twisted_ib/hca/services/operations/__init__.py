"""
The operations of work requests, a module for each kind: what the requester sends and what the responder
does.  Pure.

A class is the row of one work request opcode (L{operation.Operation}); L{rows} lists them, and all tables of
opcodes are made from that list.

Besides:

  - C{atomics}: compare-and-swap, fetch-and-add and ATOMIC WRITE (IBTA vol. 1 9.4.5)
  - C{local}: send requests that concern local memory only
  - C{message}: what SENDs and RDMA WRITEs have in common
  - C{operation}: the halves of an operation
  - C{read}: RDMA READ
  - C{send}: alone, with immediate data, and with a key to invalidate
  - C{write}: alone, and with immediate data
"""
