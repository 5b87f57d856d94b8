"""
Tests of tests.hca.base.
"""
