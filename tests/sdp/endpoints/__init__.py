"""
Tests of the endpoints of SDP.
"""
