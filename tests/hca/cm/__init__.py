"""
Tests of tests.hca.cm.
"""
