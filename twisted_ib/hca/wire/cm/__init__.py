"""
Messages of the communication manager (IBTA vol. 1 chapter 12).

C{REQ}, C{REP} and C{RTU} open a connection, like the three segments of TCP's handshake; C{REJ} refuses it,
C{MRA} asks for time, C{DREQ} and C{DREP} close. C{SIDR_REQ} and C{SIDR_REP} find the queue pair of a
datagram service; C{LAP} and C{APR} change the path of an open connection.

Every message is 232 octets, big endian: a MAD without its 24-octet header. Private data areas have a fixed
size and no length field, so the receiver always gets the whole area. C{parse} accepts any value of any field
and raises L{WireError} for a wrong length only; reserved bits are preserved in C{reserved}, an integer as
wide as the fixed part of the message, so that a parsed message packs to the same octets.

Modules:

  - C{layout}: the common base of the messages of L{twisted_ib.hca.wire.cm}
  - C{messages}: the messages (IBTA vol. 1 chapter 12), and numbers in them
"""
