"""
Tests for what C{.ci} has: a gate that is not tried is none.
"""
