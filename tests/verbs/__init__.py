"""
Tests of twisted_ib.verbs.
"""
