"""
Tests of tests.hca.fabric.roce.
"""
