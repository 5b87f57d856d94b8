"""
Tests of twisted_ib.hca.mad.rmpp.
"""
