"""
Tests of tests.hca.verbs.
"""
