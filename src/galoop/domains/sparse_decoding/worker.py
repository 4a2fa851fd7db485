"""What runs inside the isolation: a selector indexes contexts, and chooses for rows.

Two processes serve one artifact. One is given the keys and values of a context and makes the index.
The other is given the index, as the trusted side measured it, and the queries, keys and values of
what comes after the context: what it knows of the context is in the index. Neither sees a text, a
token, or an answer.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from galoop.domains.sparse_decoding.masks import SelectorError, as_mask
from galoop.domains.text.candidate import Handler, seed_everything, serve_requests, write_file
from galoop.domains.text.decoding.tensors import pack, view

if TYPE_CHECKING:
    import torch

    from galoop.isolation.channel import Channel


def warm(init: Mapping[str, Any]) -> None:
    """Load what selectors need; no model is among it."""
    import torch

    torch.set_num_threads(1)
    import galoop.domains.sparse_decoding.scores
    import galoop.methods.oracle_topk
    import galoop.methods.pqcache
    import galoop.methods.quest
    import galoop.methods.sliding_window  # noqa: F401 - what artifacts mostly import


def serve(warmed: None, init: Mapping[str, Any], channel: Channel) -> None:
    """Serve one artifact: ``init`` holds its ``files`` and its ``budget``."""
    handle = handler(init)

    def seeded(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        # A step is not seeded by itself: that would cost more than many a choice.
        if request["op"] != "select":
            seed_everything(request.get("seed", 0))
        return handle(request, fds)

    serve_requests(channel, seeded)


def handler(init: Mapping[str, Any]) -> Handler:
    """What answers the requests to one artifact."""
    choosing: list[Choosing] = []

    def handle(request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        if request["op"] == "select":
            choosing[0].select(request["layer"], request["rows"], request["new"])
            return {}
        # A fresh selector for each example: what one keeps from an example to the next must not
        # decide an answer.
        selector = load_selector(init["files"], init["budget"]["density"])
        if request["op"] == "index":
            write_file(fds[1], pack(_index(selector, view(fds[0], request["layout"]))))
        elif request["op"] == "begin":
            choosing[:] = [Choosing(selector, request, fds)]
        return {}

    return handle


def load_selector(files: Mapping[str, str], density: float) -> Any:
    """Execute an artifact's entry point.

    Raises
    ------
    ArtifactError, ArtifactRuntimeError
    """
    from galoop.domains.sparse_decoding.artifact_spec import RULES, parse_spec
    from galoop.domains.text.artifact_code import call_entry

    spec = parse_spec(files)
    selector = call_entry(files, spec, RULES, density=density)
    for name in ("index", "select"):
        if not callable(getattr(selector, name, None)):
            raise SelectorError(
                f"artifact {spec.name!r}: {spec.entry} returned {type(selector).__name__}, which "
                f"has no method {name}",
                "return an object with index(keys, values) and select(index, step)",
            )
    return selector


def _index(selector: Any, captured: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The indices of all layers, named ``<layer>.<name>``."""
    import torch

    out: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for layer in range(captured["keys"].shape[0]):
            keys, values = captured["keys"][layer][None], captured["values"][layer][None]
            made = selector.index(keys, values)
            if not isinstance(made, Mapping):
                raise SelectorError(f"index returned {type(made).__name__}, not a dict of tensors")
            for name, tensor in made.items():
                if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                    raise SelectorError("index returned something else than a dict of tensors")
                out[f"{layer}.{name}"] = tensor
    return out


class Choosing:
    """One example: its index, what came after the context, and what was chosen.

    Parameters
    ----------
    selector : object
        The artifact's.
    request : mapping
        ``layout`` of the index, ``context`` n, and ``shape``: (layers, H, J, D, dtype).
    fds : list of int
        Queries, keys and values come in the first file, choices go out through the second; the
        third, where there is one, is the index.
    """

    def __init__(self, selector: Any, request: Mapping[str, Any], fds: list[int]) -> None:
        self._selector = selector
        self._context = int(request["context"])
        layers, self._heads, self._kv, self._dim, self._dtype = request["shape"]
        self._in = mmap.mmap(fds[0], 0, access=mmap.ACCESS_READ)
        self._out = mmap.mmap(fds[1], 0)
        self._index: list[dict[str, torch.Tensor]] = [{} for _ in range(layers)]
        if len(fds) > 2:
            for name, tensor in view(fds[2], request["layout"]).items():
                layer, _, leaf = name.partition(".")
                self._index[int(layer)][leaf] = tensor
        #: By layer: what the last row so far chose.
        self._previous: list[torch.Tensor | None] = [None] * layers
        self._below: torch.Tensor | None = None

    def select(self, layer: int, rows: int, new: int) -> None:
        """Choose for the last ``rows`` of ``new`` tokens after the context; write the choice."""
        import torch

        from galoop.methods.selection import Step

        with torch.inference_mode():
            queries, keys, values = self._read(rows, new)
            step = Step(
                queries,
                keys,
                values,
                self._context,
                layer,
                previous=self._previous[layer],
                below=self._below if layer else None,
            )
            chosen = as_mask(self._selector.select(self._index[layer], step), step)
        self._previous[layer] = chosen[:, :, -1]
        self._below = chosen
        data = chosen[0].contiguous().view(torch.uint8).numpy()
        self._out[: data.size] = data.tobytes()

    def _read(self, rows: int, new: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        dtype = getattr(torch, self._dtype)
        counts = [n * self._dim for n in (self._heads * rows, self._kv * new, self._kv * new)]
        # A copy: what a selector keeps must not change with the next step.
        flat = torch.frombuffer(bytearray(self._in[: sum(counts) * dtype.itemsize]), dtype=dtype)
        q, k, v = flat.split(counts)
        return (
            q.reshape(1, self._heads, rows, self._dim),
            k.reshape(1, self._kv, new, self._dim),
            v.reshape(1, self._kv, new, self._dim),
        )
