"""
Tests of L{twisted_ib.hca.services.operations}.
"""
