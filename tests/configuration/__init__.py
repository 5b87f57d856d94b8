"""
Tests of L{twisted_ib.configuration}.
"""
