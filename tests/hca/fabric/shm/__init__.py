"""
Tests of tests.hca.fabric.shm.
"""
