"""
Tests of tests.verbs.pyverbs.qp.
"""
