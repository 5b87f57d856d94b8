"""
Management classes of one file each, for tests: what a class costs.
"""
