"""
Tests of hosted subnets.
"""
