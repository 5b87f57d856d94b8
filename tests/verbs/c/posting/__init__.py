"""
Tests of posting in C.
"""
