"""
Tests of tests.internet.
"""
