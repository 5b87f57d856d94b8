"""
Tests for L{twisted_ib.aio}.
"""
