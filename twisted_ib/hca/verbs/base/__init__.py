"""
Foundations of the verbs objects: lock, progress engine, errors, values as wide as C's.  Begin with C{hub}.
"""
