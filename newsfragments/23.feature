C programs have the libraries of RDMA in Python: with the extra `[c]`, `libibverbs.so.1` is built over the software HCA, and Debian's `ibv_devices` and `ibv_devinfo` run as they are.
