"""
Tests of tests.rds.media.
"""
