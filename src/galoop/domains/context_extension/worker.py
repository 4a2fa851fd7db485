"""What runs inside the isolation: an artifact lays out positions. It sees no text and no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from galoop.domains.text.candidate import serve_requests, write_file

if TYPE_CHECKING:
    from galoop.isolation.channel import Channel


def warm(init: Mapping[str, Any]) -> None:
    """Import what every plan needs, once; the model is not loaded here."""
    import torch

    torch.set_num_threads(1)
    import galoop.domains.context_extension.layouts
    import galoop.methods.positions  # noqa: F401


def serve(warmed: None, init: Mapping[str, Any], channel: Channel) -> None:
    """Serve one artifact: ``init`` holds its ``files`` and its ``budget``."""

    def handle(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        if request["op"] == "load":
            from galoop.domains.context_extension.artifact_spec import parse_spec

            return {"name": parse_spec(init["files"]).name}
        return _plan(init, request, fds[0])

    serve_requests(channel, handle)


def _plan(init: Mapping[str, Any], request: Mapping[str, Any], out: int) -> dict[str, Any]:
    import numpy as np

    from galoop.domains.context_extension.artifact_spec import RULES, parse_spec
    from galoop.domains.context_extension.wire import pack
    from galoop.domains.text.artifact_code import ArtifactRuntimeError, call_entry
    from galoop.methods.positions import Shape, expand
    from galoop.types import State

    about = dict(request["shape"])
    shape = Shape(**{**about, "frequencies": np.asarray(about["frequencies"], dtype=np.float64)})
    length = int(request["length"])
    spec = parse_spec(init["files"])
    plans = call_entry(init["files"], spec, RULES, shape=shape, length=length)
    try:
        rows = expand(plans, shape.layers, shape.heads)
        described, data = pack(rows, shape.head_dim // 2, length)
    except (ValueError, TypeError, AttributeError) as error:
        raise ArtifactRuntimeError(
            f"artifact {spec.name!r}: what {spec.entry} returned is not a plan: {error}",
            State.INVALID,
        ) from error
    write_file(out, data)
    return described
