"""The Sockets Direct Protocol: streams over RC queue pairs."""
