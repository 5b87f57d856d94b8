"""
Tests of tests.rdma.
"""
