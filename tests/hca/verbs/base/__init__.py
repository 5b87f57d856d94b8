"""
Tests of tests.hca.verbs.base.
"""
