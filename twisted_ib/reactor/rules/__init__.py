"""
The rules of the offload switch, in the language of C{libsdp.conf}: read, and applied.

C{lexer}, C{syntax} and C{parser} read a file, C{policy} says what its rules mean for a port or a connection,
C{configuration} finds the file and reads it again on SIGHUP.
"""
