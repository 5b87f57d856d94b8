"""
C{lo0}: the fabric within one thread.  Records go through a queue in memory; nothing leaves the process.

Modules:

  - C{loopback}: the fabric within one thread
"""
