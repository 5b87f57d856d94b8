"""
Tests of tests.reactor.
"""
