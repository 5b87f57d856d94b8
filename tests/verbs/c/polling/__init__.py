"""
Tests of polling in C.
"""
