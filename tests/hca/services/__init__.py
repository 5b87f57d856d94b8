"""
Tests of tests.hca.services.
"""
