"""
C{lo0}: the fabric within one thread.  Records go through a list; nothing leaves the process.
"""
