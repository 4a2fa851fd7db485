"""Artifacts that misbehave, each with the state and the words of the reason that it must get."""

from __future__ import annotations

from dataclasses import dataclass

from galoop.types import Candidate, State
from presses import folder_artifact, press_that


@dataclass(frozen=True)
class Bad:
    candidate: Candidate
    state: State
    reason: str


def bad(body: str, state: State, reason: str, *, load: str = "pass", mode: str = "auto") -> Bad:
    return Bad(folder_artifact(press_that(body, load), mode=mode), state, reason)


def hooked(body: str) -> Candidate:
    """A folder whose press reaches into the worker's own modules."""
    return folder_artifact(press_that("return keys[:, :, :n], values[:, :, :n]", body))


FORGE = """
frame = sys._getframe()
while "channel" not in frame.f_locals:
    frame = frame.f_back
channel = frame.f_locals["channel"]
channel.reply = lambda obj: type(channel).reply(channel, {reply})
"""
INVALID, FAILED = State.INVALID, State.FAILED
BAD = {
    "raises at load": bad(
        "return keys, values", FAILED, "ValueError: no luck", load="raise ValueError('no luck')"
    ),
    "raises at compress": bad("raise KeyError('lost')", FAILED, "KeyError: 'lost'"),
    "says where it raised": bad("x = 1 / 0", FAILED, "press.py, line"),
    "fails in its second layer": bad(
        "if module.layer_idx == 1: raise ValueError('second')\n"
        "return keys[:, :, :n], values[:, :, :n]",
        FAILED,
        "second",
    ),
    "sys.exit": bad("sys.exit(3)", FAILED, "SystemExit"),
    "sys.exit at load": bad("pass", FAILED, "SystemExit", load="sys.exit(0)"),
    "os._exit": bad("os._exit(7)", FAILED, "exit code 7"),
    "interrupt": bad("raise KeyboardInterrupt", FAILED, "KeyboardInterrupt"),
    "segfault": bad("import ctypes; ctypes.string_at(0)", FAILED, "SIGSEGV"),
    "endless recursion": bad(
        "def f(x): return f(x) + 1\nreturn f(keys), values", FAILED, "RecursionError"
    ),
    "allocates too much": bad(
        "b = [torch.ones(2**28) for _ in range(9)]\nreturn keys, values", FAILED, "memory"
    ),
    "wrong heads": bad(
        "return keys[:, :1, :n], values[:, :1, :n]", INVALID, "layer 0: keys have shape (1, "
    ),
    "wrong dimension": bad(
        "return keys[:, :, :n, :4], values[:, :, :n, :4]", INVALID, "layer 0: keys have shape"
    ),
    "wrong rank": bad("return keys[0], values[0]", INVALID, "shape"),
    "not tensors": bad("return [1], [2]", FAILED, "AttributeError"),
    "none": bad("return None", FAILED, "TypeError"),
    "wrong dtype": bad(
        "return keys[:, :, :n].double(), values[:, :, :n].double()", INVALID, "torch.float64"
    ),
    "nan": bad("return keys[:, :, :n] * float('nan'), values[:, :, :n]", INVALID, "keys hold NaN"),
    "infinite": bad(
        "return keys[:, :, :n], values[:, :, :n] + float('inf')", INVALID, "values hold NaN"
    ),
    "keys unlike values": bad("return keys[:, :, :n], values[:, :, 1:n]", INVALID, "keys but"),
    "keeps too much": bad("return keys, values", INVALID, "over budget"),
    "keeps one too many": bad(
        "return keys[:, :, :n + 1], values[:, :, :n + 1]", INVALID, "over budget"
    ),
    "keeps more than there was": bad(
        "return keys.repeat(1, 1, 3, 1), values.repeat(1, 1, 3, 1)", INVALID, "over budget"
    ),
    "keeps nothing": bad("return keys[:, :, :0], values[:, :, :0]", INVALID, "nothing is kept"),
    "masks everything": bad(
        "h, s = torch.meshgrid(torch.arange(keys.shape[1]), torch.arange(keys.shape[2]),"
        " indexing='ij')\n"
        "module.masked_key_indices = (h.flatten() * 0, h.flatten(), s.flatten())\n"
        "return keys, values",
        INVALID,
        "nothing is kept",
    ),
    "output too large": bad(
        "return keys.repeat(1, 1, 99999, 1), values.repeat(1, 1, 99999, 1)", FAILED, ""
    ),
    "not a press": Bad(
        folder_artifact("def build_press(compression_ratio):\n    return 7\n"),
        INVALID,
        "not a press",
    ),
    "pipeline from a folder": bad(
        "return keys[:, :, :n], values[:, :, :n]", INVALID, "acts while decoding", mode="pipeline"
    ),
    "unknown import": bad("pass", FAILED, "No module named", load="import not_installed_here"),
    "forged mode": Bad(
        hooked(FORGE.format(reply="{'mode': 7}")), INVALID, "unknown execution mode 7"
    ),
    "forged mode list": Bad(hooked(FORGE.format(reply="{'mode': ['replay']}")), INVALID, "unknown"),
    "forged mode missing": Bad(hooked(FORGE.format(reply="{}")), INVALID, "mode None"),
    "garbage bytes": Bad(
        hooked(
            "import galoop.domains.kv_compression.worker as worker\n"
            "worker._pack_cache = lambda *a: b'\\x07' * 999"
        ),
        INVALID,
        "not a tensor file",
    ),
    "no bytes": Bad(
        hooked(
            "import galoop.domains.kv_compression.worker as worker\n"
            "worker._pack_cache = lambda *a: b''"
        ),
        INVALID,
        "not a tensor file",
    ),
    "huge output": Bad(
        hooked(
            "import galoop.domains.kv_compression.worker as worker\n"
            "worker._pack_cache = lambda *a: b'0' * (16 * 2**20)"
        ),
        INVALID,
        "bytes; at most",
    ),
}
