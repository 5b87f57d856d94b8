"""
Gates: numbers that may only fall.
"""
