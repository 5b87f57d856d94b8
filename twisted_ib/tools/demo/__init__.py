"""
C{ib-demo}: file transfers and round trips over SDP and over TCP, side by side.  Begin with C{demo}.
"""
