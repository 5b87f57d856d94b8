from collections.abc import Sequence

async def to_frames(
    msg: object, allow_offload: bool = ..., **kwargs: object
) -> list[bytes | bytearray | memoryview]: ...
async def from_frames(
    frames: Sequence[memoryview],
    deserialize: bool = ...,
    deserializers: object = ...,
    allow_offload: bool = ...,
) -> object: ...
def ensure_concrete_host(host: str, default_host: str | None = ...) -> str: ...
