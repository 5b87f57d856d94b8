"""
Tests of twisted_ib.hca.fabric.iwarp.protocol.
"""
