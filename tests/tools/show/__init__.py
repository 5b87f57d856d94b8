"""
Tests of tests.tools.show.
"""
