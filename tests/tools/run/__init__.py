"""
Tests of C{ib-run}.
"""
