"""
Tests of the connection and the loop of blocking sockets alone, over transports and devices of a test.
"""
