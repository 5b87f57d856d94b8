"""
Tests of L{twisted_ib.dask}.
"""
