"""
Tests of blocking sockets over SDP.
"""
