"""
Tests of L{twisted_ib.hca.mad.sa}.
"""
