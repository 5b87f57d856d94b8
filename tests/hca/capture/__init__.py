"""
Tests of tests.hca.capture.
"""
