"""
Tests of tests.hca.verbs.cm.
"""
