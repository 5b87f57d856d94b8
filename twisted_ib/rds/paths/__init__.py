"""
A path of RDS: all that goes between two addresses, whatever carries it.
"""
