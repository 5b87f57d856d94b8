"""
Tests of L{twisted_ib.hca.sm}.
"""
