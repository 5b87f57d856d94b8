"""
Tests of tests.tools.ping.
"""
