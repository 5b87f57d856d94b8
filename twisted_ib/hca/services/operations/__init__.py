"""
The operations of work requests, a module for each kind: what the requester sends and what the responder
does.  Pure.

A class is the row of one work request opcode (L{operation.Operation}); L{rows} lists them, and all tables of
opcodes are made from that list.
"""
