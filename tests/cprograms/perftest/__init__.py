"""
perftest in forms of its options.
"""
