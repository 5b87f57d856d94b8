# isort: skip_file
from twisted_ib.blocking.select import epoll as epoll
from twisted_ib.blocking.select import poll as poll
from twisted_ib.blocking.select import select as select

# All other names: what stands above is not replaced.
from select import *  # type: ignore[assignment]  # noqa: F403
