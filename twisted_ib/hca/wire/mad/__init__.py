"""
Management datagrams: what all classes have in common, each class's header, and connection management as one
class (IBTA vol. 1 13.4).
"""
