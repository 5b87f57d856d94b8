"""
Queue pairs of verbs, their attributes, and posting.  Begin with C{qp}.
"""
