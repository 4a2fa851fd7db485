"""What runs inside the isolation for every text domain: the loop of requests, seeds, errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from galoop.isolation.channel import Channel

#: Answers a request, given the files that came with it.
Handler = Callable[[Mapping[str, Any], list[int]], dict[str, Any]]


def serve_requests(channel: Channel, handle: Handler) -> None:
    """Answer requests until the trusted side ends the process.

    Every request is answered from a random state of its own (its ``seed``), and whatever the
    artifact's code raises is answered as an error with its place.
    """
    for request, fds in channel:
        try:
            seed_everything(request.get("seed", 0))
            reply = handle(request, fds)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code
            reply = {"error": _describe(error), "state": _state(error)}
        channel.reply(reply)


def seed_everything(seed: int) -> None:
    """Give the artifact its own random state, the same for the same (artifact, example, repeat).

    Compactor, for one, draws an unseeded Gaussian sketch.
    """
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def write_file(fd: int, data: bytes) -> None:
    """Write all of ``data`` at the start of a file."""
    view = memoryview(data)
    offset = 0
    while offset < len(view):
        offset += os.pwrite(fd, view[offset:], offset)


def _describe(error: BaseException) -> str:
    from galoop.domains.text.artifact_code import describe_failure
    from galoop.errors import GaloopError

    if isinstance(error, GaloopError):
        return str(error)
    return describe_failure(error)


def _state(error: BaseException) -> str:
    state = getattr(error, "state", None)
    return str(state) if state is not None else "failed"
