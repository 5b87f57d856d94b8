"""
Tests of tests.tools.
"""
