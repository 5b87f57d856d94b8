"""
Tests of tests.processes.applications.
"""
