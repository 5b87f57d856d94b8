"""
IP over InfiniBand (RFC 4391, 4392, 4755): IP packets over datagrams and reliable connections of an HCA.
"""
