"""
Tests of tests.switch.rules.
"""
