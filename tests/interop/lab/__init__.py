"""
Tests of tests.interop.lab.
"""
