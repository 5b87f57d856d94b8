"""
Whole test suites of other projects, run against this one's reactor and transports.
"""
