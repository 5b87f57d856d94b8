"""
A connection as C{distributed} wants it: Python objects in and out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import dask
from dask.utils import parse_timedelta
from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames
from distributed.utils import ensure_memoryview

from twisted_ib import limits
from twisted_ib.errors import HCAError

if TYPE_CHECKING:
    from twisted_ib.dask.stream import FrameStream

# Its users look there.
logger = logging.getLogger("distributed.comm.ib")


class IB(Comm):
    """
    A connection of C{ib:}.
    """

    def __init__(self, stream: FrameStream, local: str, peer: str, deserialize: bool = True) -> None:
        """
        @param local: This end's address, with the scheme.
        @param deserialize: See C{distributed.comm.Comm}.
        """
        super().__init__(deserialize=deserialize)
        # distributed.comm.core.connect reads these.
        self._local_addr, self._peer_addr = local, peer
        self._stream = stream
        self._closed = False

    def __del__(self) -> None:
        # Like TCP's, which says so too.
        if not self.closed() and not sys.is_finalizing():
            logger.warning("Closing dangling stream in %s", self)
            self._stream.abort()

    @property
    def local_address(self) -> str:
        """
        This end's address, with the scheme.
        """
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """
        The peer's address, with the scheme.
        """
        return self._peer_addr

    async def read(self, deserializers: Any = None) -> Any:
        """
        Return the next message.

        @raise CommClosedError: The connection has ended.
        """
        try:
            self._check()
            frames = await self._stream.receive()
        except HCAError as error:
            self._broken(error)
        except BaseException:
            # The message that was read is lost, so there is no next one either.
            self.abort()
            raise
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise CommClosedError("aborted stream on truncated data") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """
        Send a message.

        @return: The bytes of its frames.
        @raise CommClosedError: The connection has ended.
        """
        self._check()
        options: Mapping[str, Any] = self.handshake_options
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **options},
            # A READ has no buffer that it must fit into.
            frame_split_size=limits.MESSAGE_BYTES,
        )
        views = [frame if type(frame) is bytes else ensure_memoryview(frame) for frame in frames]
        try:
            self._check()
            await self._stream.send(views)
        except HCAError as error:
            self._broken(error)
        except BaseException:
            self.abort()
            raise
        return sum(map(len, views))

    def _check(self) -> None:
        if self._closed:
            raise CommClosedError(f"in {self}: the connection was closed here")

    def _broken(self, error: HCAError) -> NoReturn:
        # A close that waits until the peer has read goes on.
        if not self._closed:
            self.abort()
        raise CommClosedError(f"in {self}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """
        Close once the peer has read what was written; as TCP gives up, give up.
        """
        if self._closed:
            return
        self._closed = True
        seconds = parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="seconds")
        try:
            await asyncio.wait_for(self._stream.close(), seconds)
        except BaseException as error:
            # A caller that is cancelled has closed it all the same.
            self._stream.abort()
            if not isinstance(error, asyncio.TimeoutError):
                raise

    def abort(self) -> None:
        """
        End at once.
        """
        self._closed = True
        self._stream.abort()

    def closed(self) -> bool:
        """
        Whether it has ended.
        """
        return self._closed or self._stream.loss is not None
