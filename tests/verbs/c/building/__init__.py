"""
Tests of the build of the C libraries.
"""
