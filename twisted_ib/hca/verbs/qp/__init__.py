"""
Queue pairs of verbs, their attributes, and posting.
"""
