"""
Measurements of twisted_ib beside Twisted's TCP; see C{README.md} in this folder.
"""
