"""
Management attributes, each a class with its layout: C{node} and C{port} of subnet management (IBTA vol. 1
14.2.5), C{notice} with the details of traps, and with ClassPortInfo of all classes, and C{performance} (IBTA
vol. 1 16.1.3).  C{administration} has the records of subnet administration (IBTA vol. 1 15.2.5), C{layouts}
the fields that all are made of.
"""
