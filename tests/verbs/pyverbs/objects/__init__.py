"""
Tests of tests.verbs.pyverbs.objects.
"""
