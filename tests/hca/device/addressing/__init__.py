"""
Tests of tests.hca.device.addressing.
"""
