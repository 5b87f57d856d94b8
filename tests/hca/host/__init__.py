"""
Tests of tests.hca.host.
"""
