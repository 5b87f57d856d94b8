"""
Tests of tests.processes.rds.
"""
