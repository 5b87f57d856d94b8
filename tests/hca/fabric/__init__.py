"""
Tests of tests.hca.fabric.
"""
