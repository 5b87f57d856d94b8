"""
Management datagrams (IBTA vol. 1 13.4): common header, class headers, and connection management as one
class.  Begin with C{mad}.

Besides:

  - C{administration}: subnet administration, class 0x03
  - C{classes}: class headers of MADs, between the common header and the attribute (IBTA vol. 1 13.4, 13.6,
    14.2, 15.2, 16)
  - C{cm}: CM messages as management datagrams (IBTA vol. 1 12.6)
"""
