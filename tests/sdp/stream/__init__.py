"""
Tests of tests.sdp.stream.
"""
