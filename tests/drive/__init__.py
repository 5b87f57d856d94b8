"""
Tests of twisted_ib.drive.
"""
