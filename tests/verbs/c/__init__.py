"""
Tests of the libraries for C programs.
"""
