"""
Tests of tests.rds.streams.
"""
