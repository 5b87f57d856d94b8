"""
Tests of tests.processes.verbs.
"""
