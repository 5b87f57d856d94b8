"""
Tests of tests.support.
"""
