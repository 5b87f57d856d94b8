"""
Queue pairs of verbs, their attributes, and posting.  Begin with C{qp}.

Besides:

  - C{qpattr}: the attributes of queue pairs
  - C{qpex}: requests are built by calls, and posted together
"""
