"""
Tests of tests.examples.
"""
