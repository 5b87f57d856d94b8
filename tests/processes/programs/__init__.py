"""
Tests of tests.processes.programs.
"""
