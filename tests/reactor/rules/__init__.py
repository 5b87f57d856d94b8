"""
Tests of tests.reactor.rules.
"""
