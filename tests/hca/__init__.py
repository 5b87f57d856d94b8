"""
Tests of tests.hca.
"""
