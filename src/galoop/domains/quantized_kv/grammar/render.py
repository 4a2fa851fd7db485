"""Codec program -> artifact folder, and back."""

from __future__ import annotations

from galoop.domains.quantized_kv.artifact_spec import DOMAIN, RULES, SOURCE_FILE, parse_spec
from galoop.domains.quantized_kv.grammar.tree import Program, from_json, summary, to_json
from galoop.domains.text.artifact_spec import MANIFEST, ArtifactSpec
from galoop.errors import ArtifactError
from galoop.types import Candidate

_SOURCE = '''"""{words}."""

import torch

from galoop.domains.quantized_kv import blocks
from galoop.methods.codec import Reader, Writer
{imports}
KEYS = blocks.Rounding({keys})
VALUES = blocks.Rounding({values})


class ProgramCodec:
    """Rounds a cache to as many bits as the budget pays."""

    def __init__(self, bits):
        self.bits = bits

    def fit(self, shape):
        """What the budget pays, from the shape alone: both sides come to the same."""
        return blocks.fit(shape, self.bits, KEYS, VALUES, exact={exact})

    def encode(self, cache):
        shape, fit, out = cache.shape, self.fit(cache.shape), Writer()
        parts, spreads = [], []
        for keys, values in zip(cache.keys, cache.values):
{forward}            exact = {chosen}
            rest = blocks.other_tokens(exact, shape.length)
            parts.append((keys, values, exact, rest))
            spreads += [fit.keys.spread(keys[:, rest]), fit.values.spread(values[:, rest])]
        widths = fit.widths(blocks.weights({depth!r}, {lean!r}, spreads))
        out.index(torch.tensor(widths))
        for i, (keys, values, exact, rest) in enumerate(parts):
            out.index(exact)
            out.half(keys[:, exact])
            out.half(values[:, exact])
            fit.keys.write(out, keys[:, rest], widths[2 * i])
            fit.values.write(out, values[:, rest], widths[2 * i + 1])
        return out.tensors()

    def decode(self, tensors, shape):
        fit, read = self.fit(shape), Reader(tensors)
        heads, dim = shape.heads, shape.dim
        all_keys = torch.zeros(shape.layers, heads, shape.length, dim)
        all_values = torch.zeros_like(all_keys)
        widths = read.index(2 * shape.layers).tolist()
        for i in range(shape.layers):
            exact = read.index(fit.exact)
            rest = blocks.other_tokens(exact, shape.length)
            all_keys[i][:, exact] = read.half(heads, fit.exact, dim)
            all_values[i][:, exact] = read.half(heads, fit.exact, dim)
            all_keys[i][:, rest] = fit.keys.read(read, heads, len(rest), dim, widths[2 * i])
            all_values[i][:, rest] = fit.values.read(read, heads, len(rest), dim, widths[2 * i + 1])
{backward}        return all_keys, all_values


def build_codec(bits):
    """The entry point."""
    return ProgramCodec(bits)
'''


def source(program: Program) -> str:
    """The text of ``codec.py``."""
    imports = forward = backward = ""
    if program.before_rope:
        imports = "from galoop.methods.quantization import apply_rope, remove_rope\n"
        forward = "            keys = remove_rope(keys, shape.cos, shape.sin)\n"
        backward = "            all_keys[i] = apply_rope(all_keys[i], shape.cos, shape.sin)\n"
    exact = program.first + program.last + program.outliers
    return _SOURCE.format(
        words=_sentence(program),
        imports=imports,
        keys=_arguments(program, "keys"),
        values=_arguments(program, "values"),
        exact=exact,
        forward=forward,
        backward=backward,
        chosen="blocks.exact_tokens(\n"
        f"                keys, values, fit.exact, first={program.first}, last={program.last}, "
        f"by={program.outliers_by!r}\n            )",
        depth=program.depth,
        lean=program.lean,
    )


def _sentence(program: Program) -> str:
    words = summary(program)
    return words[:1].upper() + words[1:]


def _arguments(program: Program, side: str) -> str:
    lines = [f"    {key}={value!r},\n" for key, value in program.side(side).items()]
    return "\n" + "".join(lines)


def render(program: Program, bits: float, note: str) -> Candidate:
    """Write the artifact folder of a program.

    Parameters
    ----------
    program : Program
        Normalised (see :func:`.tree.normalise`).
    bits : float
        The budget.
    note : str
        Which move made it; for people, not part of the files.
    """
    provenance = {
        "origin": "galoop grammar",
        "note": summary(program),
        "tree": to_json(program),
    }
    spec = ArtifactSpec(
        "codec-program", DOMAIN, RULES.entry, "auto", {"bits": float(bits)}, provenance
    )
    files = {MANIFEST: spec.to_toml(), SOURCE_FILE: source(program)}
    return Candidate("artifact", files, f"{note}: {summary(program)}")


def revive(candidate: Candidate) -> Program | None:
    """The tree of a folder that :func:`render` wrote; None when it did not, or was edited since."""
    try:
        spec = parse_spec(candidate.files)
        program = from_json(spec.provenance.get("tree", ""))
        again = render(program, spec.budget["bits"], "")
    except (ArtifactError, ValueError, KeyError, TypeError):
        return None
    return program if dict(again.files) == dict(candidate.files) else None
