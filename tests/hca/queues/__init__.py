"""
Tests of tests.hca.queues.
"""
