"""
Tests of tests.hca.connection.
"""
