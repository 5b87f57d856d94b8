"""
C{ib-ping}: rping, ucmatose, udaddy, mckey and rds-ping, with their protocols and option letters.  Begin with
C{ping}.
"""
