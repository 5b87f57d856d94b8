"""
The communication manager of verbs: C{CMID}, events and addresses, after librdmacm and pyverbs.  Begin with
C{cmid}.
"""
