# What twisted_ib.dask uses of Dask, which is an extra.
from dask import config as config
