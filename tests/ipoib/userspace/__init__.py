"""
Tests of L{twisted_ib.ipoib.userspace} and L{twisted_ib.ipoib.port}.
"""
