"""
Tests of tests.hca.transport.
"""
