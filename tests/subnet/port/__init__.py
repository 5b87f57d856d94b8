"""
Tests of twisted_ib.subnet.port.
"""
