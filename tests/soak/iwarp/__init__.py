"""
Long tests of iWARP.
"""
