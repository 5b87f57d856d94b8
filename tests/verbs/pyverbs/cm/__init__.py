"""
Tests of tests.verbs.pyverbs.cm.
"""
