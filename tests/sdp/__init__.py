"""
Tests of tests.sdp.
"""
