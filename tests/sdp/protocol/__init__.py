"""
Tests of tests.sdp.protocol.
"""
