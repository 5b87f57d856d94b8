"""
Queue pairs of verbs, their attributes, and posting.  Begin with C{qp}.

Besides:

  - C{qpattr}: the attributes of queue pairs
  - C{qpcreation}: checks of the attributes of a new queue pair, and their conversion for the core
  - C{qpex}: requests are built by calls, and posted together
  - C{qplacks}: optional features of queue pairs that this HCA lacks
"""
