"""
Tests of tests.hca.services.datagrams.
"""
