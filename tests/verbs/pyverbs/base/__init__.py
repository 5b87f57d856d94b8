"""
Tests of tests.verbs.pyverbs.base.
"""
