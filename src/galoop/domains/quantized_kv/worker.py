"""What runs inside the isolation: one half of a codec, in a process of its own for each call.

The process that decodes never saw the cache: it is given the tensors that the other one encoded,
which the trusted side measured in between, and what is the same for every context of that length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from galoop.domains.text.candidate import serve_requests, write_file
from galoop.domains.text.decoding.tensors import pack, view

if TYPE_CHECKING:
    import torch

    from galoop.isolation.channel import Channel
    from galoop.methods.codec import Shape

#: Installed quantizers that artifacts wrap, imported once for all processes where they are there.
_LIBRARIES = ("hqq.core.quantize", "optimum.quanto")


def warm(init: Mapping[str, Any]) -> dict[str, Any]:
    """Import what codecs use; no model is needed here. ``init`` names the model's ``dtype``."""
    import contextlib
    import importlib

    import torch

    torch.set_num_threads(1)
    import galoop.methods.codec
    import galoop.methods.quantization  # noqa: F401 - warm for every child

    for library in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    return {"dtype": init["dtype"]}


def serve(warmed: Mapping[str, Any], init: Mapping[str, Any], channel: Channel) -> None:
    """Serve one request: ``init`` holds the artifact's ``files`` and its ``budget``."""

    def handle(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        codec = _load(init)
        given = view(fds[0], request["layout"])
        tables = view(fds[1], request["tables"])
        if request["op"] == "encode":
            reply = _encode(codec, given, tables)
        else:
            reply = _decode(codec, given, tables, request["size"], warmed["dtype"])
        write_file(fds[2], reply)
        return {}

    serve_requests(channel, handle)


def _load(init: Mapping[str, Any]) -> Any:
    from galoop.domains.quantized_kv.artifact_spec import RULES, parse_spec
    from galoop.domains.text.artifact_code import ArtifactRuntimeError, call_entry
    from galoop.types import State

    spec = parse_spec(init["files"])
    codec = call_entry(init["files"], spec, RULES, bits=float(init["budget"]["bits"]))
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise ArtifactRuntimeError(
                f"artifact {spec.name!r}: {spec.entry} returned {type(codec).__name__}, which has "
                f"no {name}",
                State.INVALID,
                "return an object with encode(cache) and decode(tensors, shape)",
            )
    return codec


def _shape(size: Sequence[int], tables: Mapping[str, torch.Tensor]) -> Shape:
    from galoop.methods.codec import Shape

    layers, heads, length, dim = size
    return Shape(layers, heads, length, dim, tables["cos"], tables["sin"])


def _encode(
    codec: Any, given: Mapping[str, torch.Tensor], tables: Mapping[str, torch.Tensor]
) -> bytes:
    import torch

    from galoop.methods.codec import Cache

    keys, values = given["keys"], given["values"]
    with torch.inference_mode():
        made = codec.encode(Cache(keys, values, _shape(list(keys.shape), tables)))
    named = isinstance(made, dict) and all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in made.items()
    )
    if not named:
        raise _broken(f"encode gave {type(made).__name__}, not a dict of tensors by name")
    return pack({name: tensor.clone() for name, tensor in made.items()})


def _decode(
    codec: Any,
    given: Mapping[str, torch.Tensor],
    tables: Mapping[str, torch.Tensor],
    size: Sequence[int],
    dtype: str,
) -> bytes:
    import torch

    with torch.inference_mode():
        made = codec.decode(dict(given), _shape(size, tables))
    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not all(isinstance(t, torch.Tensor) for t in made):
        raise _broken(f"decode gave {type(made).__name__}, not a pair of tensors: keys, values")
    kind = getattr(torch, dtype)
    return pack({"keys": made[0].to(kind).clone(), "values": made[1].to(kind).clone()})


def _broken(what: str) -> Exception:
    from galoop.domains.text.artifact_code import ArtifactRuntimeError
    from galoop.types import State

    return ArtifactRuntimeError(what, State.INVALID, "see the contract of the domain")
