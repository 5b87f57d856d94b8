"""
Tests of tests.hca.wire.
"""
