"""What a tier is tried with: a tiny candidate that attempts what a sandbox must refuse."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galoop.isolation.channel import Channel


def warm(init: Mapping[str, Any]) -> None:
    """Nothing to load."""


def serve(state: None, init: Mapping[str, Any], channel: Channel) -> None:
    """Reply with what could be done: read ``outside``, write beside it, open a socket."""
    for request, _fds in channel:
        outside = Path(request["outside"])
        channel.reply(
            {
                "read": _possible(outside.read_bytes),
                "write": _possible(lambda path=outside: path.write_bytes(b"changed")),
                "socket": _possible(lambda: socket.socket(socket.AF_INET).close()),
            }
        )


def _possible(action: Any) -> bool:
    try:
        action()
    except OSError:
        return False
    return True
