"""
The rules of the offload switch, in the language of C{libsdp.conf}.

C{lexer}, C{syntax} and C{parser} read a file, C{policy} applies its rules to a port or a connection,
C{configuration} finds the file and reads it again on SIGHUP.
"""
