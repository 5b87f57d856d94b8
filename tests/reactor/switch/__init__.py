"""
Tests of tests.reactor.switch.
"""
