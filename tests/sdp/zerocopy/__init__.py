"""
Tests of tests.sdp.zerocopy.
"""
