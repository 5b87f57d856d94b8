"""
Tests of twisted_ib.ipoib.protocol.stack.
"""
