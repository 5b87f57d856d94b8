"""
Tests of L{twisted_ib.ipoib}.
"""
