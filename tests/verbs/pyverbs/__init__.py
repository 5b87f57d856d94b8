"""
Tests of tests.verbs.pyverbs.
"""
