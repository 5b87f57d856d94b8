# isort: skip_file
from twisted_ib.blocking.select import DefaultSelector as DefaultSelector
from twisted_ib.blocking.select import EpollSelector as EpollSelector
from twisted_ib.blocking.select import PollSelector as PollSelector
from twisted_ib.blocking.select import SelectSelector as SelectSelector

# All other names: what stands above is not replaced.
from selectors import *  # type: ignore[assignment]  # noqa: F403
