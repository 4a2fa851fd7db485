"""Static checks of a probe's source and the text of the contract."""

from __future__ import annotations

import pytest

from galoop.domains.text.contract import ProbeRules, probe_contract
from galoop.domains.text.static import check_source
from galoop.probing.static import ALLOWED_MODULES
from probe_tools import GOOD, probe

RULES = ProbeRules(length=200, max_context_tokens=300)


def test_good_probe_passes() -> None:
    assert check_source(GOOD, RULES) is None


def test_every_allowed_module_may_be_imported() -> None:
    for name in ALLOWED_MODULES:
        assert check_source(f"import {name}\n{GOOD}", RULES) is None, name
    head = "from collections.abc import Iterable\nfrom datetime import date, timedelta\n"
    assert check_source(head + GOOD, RULES) is None


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("", "empty", "defines build"),
        ("def build(:", "syntax", "line 1"),
        ("x = '\0'", "syntax", "does not parse"),
        ("(" * 5000, "syntax", "does not parse"),
        ("x = 1", "no-build", "defines no build"),
        ("build = 3", "no-build", "defines no build"),
        ("if True:\n    def build(rng, length, count_tokens): ...", "no-build", "top level"),
        ("def build(rng, length): ...", "wrong-signature", "three positional"),
        ("def build(*args): ...", "wrong-signature", "three positional"),
        ("def build(rng, length, count_tokens, extra=1): ...", "wrong-signature", "three"),
        ("def build(rng, length, *, count_tokens): ...", "wrong-signature", "three"),
        ("async def build(rng, length, count_tokens): ...", "wrong-signature", "plain function"),
        ("class build: ...", "wrong-signature", "plain function"),
        ("def build(rng, length, count_tokens):\n    yield {}", "wrong-signature", "generator"),
        (f"import os\n{GOOD}", "import", "os in line 1"),
        (f"import random, torch\n{GOOD}", "import", "torch"),
        (f"import os.path\n{GOOD}", "import", "os.path"),
        (f"from subprocess import run\n{GOOD}", "import", "subprocess"),
        (f"from . import secrets\n{GOOD}", "import", "in line 1"),
        (probe("import socket"), "import", "socket"),
        (probe("open('/etc/passwd')"), "not-allowed", "open in line"),
        (probe("eval('1')"), "not-allowed", "eval"),
        (probe("__import__('os')"), "not-allowed", "__import__"),
        (probe("().__class__"), "not-allowed", "__class__"),
        (probe("d.update(x=random.SystemRandom())"), "not-deterministic", "rng argument"),
        (f"from random import SystemRandom\n{GOOD}", "not-deterministic", "SystemRandom"),
        (
            probe("d['x'] = datetime.date.today()", head="import datetime"),
            "not-deterministic",
            "clock",
        ),
        ("#" * 40_001, "too-long-source", "40001 characters"),
    ],
)
def test_rejections(source: str, code: str, says: str) -> None:
    fault = check_source(source, RULES)
    assert fault is not None
    assert fault.code == code
    assert says in fault.reason


def test_popular_names_of_variables_are_no_calls() -> None:
    source = probe("id = input = rng.randint(1, 2); today = object; d.pop('evidence')")
    assert check_source(source, RULES) is None


def test_a_helper_may_be_a_generator() -> None:
    inner = (
        "def build(rng, length, count_tokens):\n    def words():\n        yield 'a'\n    return {}"
    )
    assert check_source(inner, RULES) is None


def test_contract_states_the_numbers() -> None:
    rules = ProbeRules(length=200, max_context_tokens=190, max_new_tokens=13)
    text = probe_contract(rules)
    assert "95 to 190 tokens" in text
    assert "at most\n13 tokens" in text
    for name in ("random", "itertools"):
        assert name in text
    assert "{" not in text
