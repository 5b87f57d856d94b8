"""
C{ib-demo}: files and round trips over SDP and over TCP, side by side.
"""
