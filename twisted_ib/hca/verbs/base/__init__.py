"""
What the objects of verbs stand on: the lock and the loop that drive devices, errors, values as wide as C's.
"""
