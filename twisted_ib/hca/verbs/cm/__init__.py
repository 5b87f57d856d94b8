"""
The communication manager of verbs: C{CMID}, events and addresses, as librdmacm and pyverbs have them.
"""
