"""
Tests of iWARP with the large numbers.
"""
