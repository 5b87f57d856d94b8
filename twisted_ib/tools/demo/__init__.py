"""
C{ib-demo}: round trips and file transfers over SDP and over TCP, side by side.  Begin with C{demo}.
"""
