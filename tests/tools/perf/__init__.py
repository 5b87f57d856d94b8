"""
Tests of tests.tools.perf.
"""
