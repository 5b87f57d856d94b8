"""
Tests of tests.hca.verbs.objects.
"""
