"""
Tests of tests.hca.verbs.qp.
"""
