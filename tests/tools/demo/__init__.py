"""
Tests of tests.tools.demo.
"""
