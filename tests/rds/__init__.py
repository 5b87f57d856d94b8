"""
Tests of tests.rds.
"""
