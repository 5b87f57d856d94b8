"""
Tests of L{twisted_ib.subnet.sm}.
"""
