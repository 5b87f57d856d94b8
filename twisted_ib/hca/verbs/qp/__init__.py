"""
Queue pairs of verbs, their attributes, and the calls that post to them.
"""
