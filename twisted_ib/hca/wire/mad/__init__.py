"""
Management datagrams (IBTA vol. 1 13.4): common header, class headers, and connection management as one
class.  Begin with C{mad}.
"""
