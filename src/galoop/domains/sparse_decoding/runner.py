"""The confined processes of one selector: ask, check, measure; answers are computed here."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from galoop.domains.sparse_decoding.decode import Decoder
from galoop.domains.text.decoding.tensors import SharedTensors, unpack
from galoop.domains.text.runner import Forks, Made, Refused, Runner, Work, checked
from galoop.methods.selection import Density, budget
from galoop.types import Candidate, State

if TYPE_CHECKING:
    import torch

    from galoop.isolation import Child

#: What an index may hold where no budget says so, relative to the keys of the context.
MOST_INDEX = 2.0
#: Bytes that an index file may have on top: names and shapes.
_HEADER_BYTES = 2**20


class SelectorRunner(Runner):
    """The confined processes of one selector.

    Parameters
    ----------
    forks, candidate, budget, trusted
        See :class:`~galoop.domains.text.runner.Runner`.
    decoder : Decoder
    drafts : callable or None
        Gives the draft of an example, where the agreement with it is to be measured.
    seconds : float
        Most time that an example's choices may take together, and its index.
    """

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        decoder: Decoder,
        drafts: Any,
        seconds: float,
        trusted: bool = False,
    ) -> None:
        super().__init__(forks, candidate, budget, trusted=trusted)
        self._decoder = decoder
        self._drafts = drafts
        self._seconds = seconds
        self._indexer: Child | None = None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._end_indexer()

    def _end_indexer(self) -> None:
        if self._indexer is not None:
            self._indexer.close()
            self._indexer = None

    def ask(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        """Index the context, then answer with the selector's choices."""
        try:
            index, measured = self._index(work, seed)
        except BaseException:
            self._end_indexer()
            raise
        with Choices(child, work, index, self.budget, seed, self._seconds) as choices:
            answered = self._decoder.answer(
                work.prefill,
                work.question_ids,
                work.example.max_new_tokens,
                draft=self._drafts(work.example) if self._drafts else (),
                chooser=choices,
                sparse_question=bool(self.budget.get("sparse_question", 1.0)),
            )
        measured |= choices.measured
        if answered.agreement is not None:
            measured["gold_agreement"] = answered.agreement
        return Made(tokens=answered.tokens, measured=measured)

    def _index(self, work: Work, seed: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """The index that a process of its own makes, and its measured size."""
        from galoop.isolation import new_output_memfd, read_output

        if self._indexer is None:
            self._indexer = self._forks.fork(self._candidate.files, self.budget)
        shared = work.prefill.shared
        full = work.prefill.keys.numel() * work.prefill.keys.element_size()
        allowed = int(full * self.budget.get("index_fraction", MOST_INDEX))
        out = new_output_memfd("index")
        try:
            began = time.perf_counter()
            request = {"op": "index", "seed": seed, "layout": shared.layout}
            checked(self._indexer.call(request, [shared.fd, out], seconds=self._seconds))
            seconds = time.perf_counter() - began
            tensors = unpack(read_output(out, allowed + _HEADER_BYTES))
        except ValueError as error:
            raise Refused(State.INVALID, f"the index is {error}") from None
        finally:
            os.close(out)
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        if size > allowed:
            raise Refused(
                State.INVALID,
                f"over budget: an index of {size} bytes, {allowed} are allowed "
                f"({full} bytes are the keys of the context)",
            )
        layers = work.prefill.keys.shape[0]
        for name in tensors:
            number = name.partition(".")[0]
            if not number.isdecimal() or int(number) >= layers:
                raise Refused(State.INVALID, f"the index has a part {name[:40]!r} of no layer")
        return tensors, {
            "index_bytes": float(size),
            "index_fraction": size / full,
            "index_seconds": seconds,
        }


class Choices:
    """Asks a confined process what rows may attend to, and believes nothing.

    Parameters
    ----------
    child : Child
    work : Work
    index : mapping of str to Tensor
    limits : mapping of str to float
        The budget.
    seed : int
    seconds : float
        For all choices together.
    """

    def __init__(
        self,
        child: Child,
        work: Work,
        index: Mapping[str, torch.Tensor],
        limits: Mapping[str, float],
        seed: int,
        seconds: float,
    ) -> None:
        self._child = child
        self._work = work
        self._density = limits["density"]
        self._left = self._most = seconds
        self._counts = Density()
        layers, kv_heads = work.prefill.keys.shape[:2]
        self._kv_heads = kv_heads
        self._layers = layers
        self._index = index
        self._seed = seed
        self._room = len(work.question_ids) + work.example.max_new_tokens
        self._files: list[int] = []
        self._maps: list[mmap.mmap] = []

    def __enter__(self) -> Choices:
        return self

    def __exit__(self, *exc: object) -> None:
        for mapped in self._maps:
            mapped.close()
        for fd in self._files:
            os.close(fd)

    @property
    def measured(self) -> dict[str, float]:
        """Densities over all sparse rows (0 where there was none), and time."""
        any_ = self._counts.visible > 0
        return {
            "density": self._counts.density if any_ else 0.0,
            "kv_read_density": self._counts.kv_read_density if any_ else 0.0,
            "selector_seconds": self._most - self._left,
        }

    def __call__(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """The choice for the new rows of a layer; see :data:`.decode.Chooser`."""
        import torch

        heads, rows, dim = queries.shape
        if not self._maps:
            self._begin(
                heads, dim, str(queries.dtype).removeprefix("torch."), queries.element_size()
            )
        flat = torch.cat([t.detach().cpu().reshape(-1) for t in (queries, keys, values)])
        data = flat.contiguous().view(torch.uint8).numpy()
        self._maps[0][: data.size] = data.tobytes()
        new = keys.shape[1]
        request = {"op": "select", "seed": self._seed, "layer": layer, "rows": rows, "new": new}
        self._call(request)
        length = self._work.prefill.length + new
        # Copied first, then checked: the process could go on writing.
        raw = bytearray(self._maps[1][: heads * rows * length])
        chosen = torch.frombuffer(raw, dtype=torch.uint8).reshape(heads, rows, length) != 0
        return self._checked(chosen, layer).to(queries.device)

    def _begin(self, heads: int, dim: int, dtype: str, itemsize: int) -> None:
        from galoop.isolation import new_output_memfd

        most = self._work.prefill.length + self._room
        sizes = (
            (heads + 2 * self._kv_heads) * self._room * dim * itemsize,
            heads * self._room * most,
        )
        for name, size in zip(("rows", "choices"), sizes, strict=True):
            self._files.append(new_output_memfd(name, size))
            self._maps.append(mmap.mmap(self._files[-1], size))
        shape = [self._layers, heads, self._kv_heads, dim, dtype]
        request = {
            "op": "begin",
            "seed": self._seed,
            "context": self._work.prefill.length,
            "shape": shape,
            "layout": [],
        }
        if not self._index:
            self._call(request, self._files)
            return
        shared = SharedTensors(self._index)
        self._call({**request, "layout": shared.layout}, [*self._files, shared.fd])

    def _call(self, request: Mapping[str, Any], fds: list[int] | None = None) -> None:
        if self._left <= 0:
            raise Refused(State.FAILED, f"choosing took more than {self._most:g} s for one example")
        began = time.perf_counter()
        try:
            checked(self._child.call(request, fds or [], seconds=self._left))
        finally:
            self._left -= time.perf_counter() - began

    def _checked(self, chosen: torch.Tensor, layer: int) -> torch.Tensor:
        """Hold a choice, bool, (H, R, L), against the rules; each row attends to itself."""
        import torch

        heads, rows, length = chosen.shape
        at = torch.arange(length)
        seen = at < torch.arange(length - rows + 1, length + 1)[:, None]
        if bool((chosen & ~seen).any()):
            raise Refused(State.INVALID, f"layer {layer}: a row attends to an entry after itself")
        own = torch.arange(length - rows, length)
        chosen[:, torch.arange(rows), own] = True
        found = chosen.sum((0, 2)).tolist()
        for row, count in enumerate(found):
            visible = length - rows + row + 1
            allowed = heads * budget(self._density, visible)
            if count > allowed:
                raise Refused(
                    State.INVALID,
                    f"over budget: in layer {layer} the heads of a row attend to {count} entries "
                    f"together, {allowed} are allowed ({heads} heads × floor({self._density:g} × "
                    f"{visible}), at least one each)",
                )
        self._counts.add(chosen[None], self._kv_heads, seen)
        return chosen
