"""
Tests of tests.switch.
"""
