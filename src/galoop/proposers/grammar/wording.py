"""The wording of entries, questions and answer prefixes, as templates.

``{attr}``, ``{Attr}``, ``{the}`` and ``{is}`` are filled in when a program is written; ``{key}``,
``{value}``, ``{status}`` and the stamps when the program runs. What stands in ``[[ ]]`` is kept
only where entries have a status (current or outdated).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from galoop.proposers.grammar.tree import Program


@dataclass(frozen=True)
class Form:
    """How one form of entry reads.

    Attributes
    ----------
    line : str
        The template of an entry.
    before : str
        The words right before the value (a prefix that a reader can continue).
    described : str
        The form in words, plural.
    prose : bool
        Whether entries run on in the text rather than stand on lines of their own.
    stamp : str
        The kind of stamp in the entry; dates are late in current and early in outdated ones.
    """

    line: str
    before: str
    described: str
    prose: bool = False
    stamp: str = ""


FORM_WORDING = {
    "sentence": Form(
        "The [[{status} ]]{attr} of {the}{key} {is} {value}.",
        "The [[{status} ]]{attr} of {the}{key} {is}",
        "sentences",
        prose=True,
    ),
    "reminder": Form(
        "Please note that {value} {is} the [[{status} ]]{attr} of {the}{key}.",
        "Please note that",
        "reminders",
        prose=True,
    ),
    "possession": Form(
        "For {the}{key}, the [[{status} ]]{attr} {is} {value}.",
        "For {the}{key}, the [[{status} ]]{attr} {is}",
        "sentences that name the owner first",
        prose=True,
    ),
    "record": Form(
        "Name: {key}. [[Status: {status}. ]]{Attr}: {value}.",
        "Name: {key}. [[Status: {status}. ]]{Attr}:",
        "records",
    ),
    "wide record": Form(
        "Name: {key}. {Column}: {extra}. [[Status: {status}. ]]{Attr}: {value}. Group: {group}.",
        "[[Status: {status}. ]]{Attr}:",
        "records with several fields",
    ),
    "ledger": Form(
        "{stamp} | {key} | [[{status} ]]{attr} {value}",
        "{key} | [[{status} ]]{attr}",
        "lines of a ledger",
        stamp="year",
    ),
    "table": Form(
        "| {key} | [[{status} | ]]{attr} | {value} |",
        "| {key} | [[{status} | ]]{attr} |",
        "rows of a table",
    ),
    "list": Form(
        "- {key}: [[{status} ]]{attr} {value}",
        "- {key}: [[{status} ]]{attr}",
        "points of a list",
    ),
    "log": Form(
        "[{stamp}] {key}: [[{status} ]]{attr} set to {value}",
        "{key}: [[{status} ]]{attr} set to",
        "lines of a log",
        stamp="level",
    ),
    "note": Form(
        "[[{status} ]]{attr} ({key}) = {value}",
        "[[{status} ]]{attr} ({key}) =",
        "key-value notes",
    ),
    "dialogue": Form(
        "{asker}: What {is} the [[{status} ]]{attr} of {the}{key}?\n{teller}: {It} {is} {value}.",
        "{It} {is}",
        "exchanges of a dialogue",
        stamp="speakers",
    ),
    "calendar": Form(
        "{day}, week {stamp}: {key}, [[{status} ]]{attr} {value}.",
        "{key}, [[{status} ]]{attr}",
        "entries of a calendar",
        stamp="week",
    ),
    "json": Form(
        '{{"name": "{key}", [["status": "{status}", ]]"{attr}": "{value}"}}',
        '"name": "{key}", [["status": "{status}", ]]"{attr}":',
        "JSON lines",
    ),
}

QUESTION_WORDING = {
    "what is": "What {is} {phrase}?",
    "tell me": "Tell me {phrase}.",
    "according to": "According to the text, what {is} {phrase}?",
    "look up": "Look up {phrase}.",
    "I need": "I need {phrase}. What {is} {it}?",
}


def resolve(template: str, tree: Program, attribute: str) -> str:
    """Fill in what is known when the program is written; leave the fields that it fills itself."""
    stale = tree.entry.stale > 0
    template = re.sub(r"\[\[(.*?)\]\]", r"\1" if stale else "", template)
    plural = tree.entry.values > 1
    name = attribute + "s" if plural else attribute
    replacements = {
        "{attr}": name,
        "{Attr}": name[0].upper() + name[1:],
        "{the}": "the " if named_with_article(tree.key) else "",
        "{is}": "are" if plural else "is",
        "{It}": "They" if plural else "It",
    }
    for marker, text in replacements.items():
        template = template.replace(marker, text)
    return template


def named_with_article(key: str) -> bool:
    """Whether keys of this kind take "the" in a sentence."""
    return key in ("noun", "adjective noun", "same noun", "same adjective")


def question_and_prefix(tree: Program, attribute: str) -> tuple[str, str]:
    """The question and the answer prefix, as f-string bodies over ``asked`` and ``value``."""
    status = "{status} " if tree.entry.stale else ""
    the = "the " if named_with_article(tree.key) else ""
    plural = tree.entry.values > 1 or tree.ask.keys > 1
    name = attribute + "s" if plural else attribute
    if tree.ask.direction == "key":
        phrase = f"the name that goes with the {status}{attribute} {{value}}"
        if tree.entry.values > 1:
            raise ValueError("a reversed question has one value")
    elif tree.ask.keys > 1:
        phrase = f"the {status}{name} of {{asked}}"
    else:
        phrase = f"the {status}{name} of {the}{{asked}}"
    verb, pronoun = ("are", "they") if plural else ("is", "it")
    question = QUESTION_WORDING[tree.ask.question]
    question = question.replace("{phrase}", phrase).replace("{is}", verb).replace("{it}", pronoun)
    if tree.ask.prefix == "none":
        return question, ""
    if tree.ask.prefix == "label":
        return question, "Answer:"
    if tree.ask.prefix == "as in the entry":
        before = resolve(FORM_WORDING[tree.entry.form].before, tree, attribute)
        return question, before.replace("{key}", "{asked}")
    return question, f"{phrase[0].upper()}{phrase[1:]} {verb}"


def all_wording() -> str:
    """Every fixed word that a program may say; no drawn word may occur in it."""
    parts = [form.line for form in FORM_WORDING.values()]
    parts += QUESTION_WORDING.values()
    return " ".join([*parts, "name that goes with the same as for answer reading"])
