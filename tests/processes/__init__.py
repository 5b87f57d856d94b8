"""
Tests that need more than one process, and what starts and talks to those.
"""
