"""
Tests of twisted_ib.hca.fabric.ib.
"""
