"""
The tests of C{distributed} over C{ib://}.
"""
