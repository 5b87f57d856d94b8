Existing Twisted applications run over a software HCA: `sdp:` endpoints for servers and clients, an `ib` reactor for twistd, twist and trial, and the commands ib-demo, ib-get and ib-devinfo.
