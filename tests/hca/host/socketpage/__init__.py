"""
Tests of twisted_ib.hca.host.socketpage.
"""
