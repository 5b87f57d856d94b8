"""
Tests of subnets.
"""
