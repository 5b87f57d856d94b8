"""
Tests of tests.hca.memory.
"""
