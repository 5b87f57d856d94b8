"""
Tests of twisted_ib.tools.compare.
"""
