"""
Tests of twisted_ib.verbs.core.
"""
