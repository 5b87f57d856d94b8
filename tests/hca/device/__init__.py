"""
Tests of tests.hca.device.
"""
