"""
Interfaces of IP over InfiniBand in processes of their own.
"""
