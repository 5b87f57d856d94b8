"""
Tests of rsockets.
"""
