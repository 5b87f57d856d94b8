"""
Contracts: one set of tests for each interface, run on every implementation.
"""
