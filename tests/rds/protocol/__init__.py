"""
Tests of tests.rds.protocol.
"""
