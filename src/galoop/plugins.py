"""Names that can be used: domains, artifacts, models, suites, proposers and searches.

Third parties add theirs through entry points of the groups ``galoop.domains``,
``galoop.artifacts``, ``galoop.models``, ``galoop.suites``, ``galoop.proposers`` and
``galoop.searches``; the built-in ones are declared in the same way, in ``pyproject.toml``. Nothing
is imported before its name is asked for, and a plugin that fails to import is reported, not raised,
when names are listed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from galoop.errors import UnknownNameError, UsageError

Group = Literal["domains", "artifacts", "models", "suites", "proposers", "searches"]
GROUPS: tuple[Group, ...] = get_args(Group)

#: Groups whose entry points return a mapping of names instead of being one name themselves.
_PROVIDERS: frozenset[Group] = frozenset({"artifacts", "models"})


@dataclass(frozen=True)
class Listing:
    """One name that can be used, or a plugin that cannot be.

    Attributes
    ----------
    name : str
    summary : str
        One line.
    source : str
        The distribution that declares it.
    error : str
        Why it cannot be used; empty when it can.
    domain : str
        Of an artifact: whose it is. The entry point of a provider of artifacts has the name of
        its domain.
    """

    name: str
    summary: str
    source: str
    error: str = ""
    domain: str = ""

    def to_json(self) -> dict[str, str]:
        """A JSON object; ``domain`` stands in it where there is one."""
        return {key: value for key, value in asdict(self).items() if value or key != "domain"}


def names(group: Group) -> list[str]:
    """Names of a group's entry points, sorted, without importing any of them."""
    return sorted({point.name for point in _points(group)})


def load(group: Group, name: str) -> Any:
    """What a name stands for.

    Raises
    ------
    UnknownNameError
        Nothing of that name; the message says what there is.
    UsageError
        The plugin of that name does not import, or two distributions declare it.
    """
    found = [point for point in _points(group) if point.name == name]
    if not found:
        raise UnknownNameError(unknown(group, name, names(group)))
    if len({point.value for point in found}) > 1:
        sources = ", ".join(_source(point) for point in found)
        raise UsageError(f"{group[:-1]} {name!r} is declared by several packages: {sources}")
    try:
        return found[0].load()
    except Exception as error:
        raise UsageError(
            f"{group[:-1]} {name!r} of {_source(found[0])} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


def unknown(group: Group, name: str, known: list[str]) -> str:
    """``unknown suite 'rulr'; did you mean ruler?`` or the names there are."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}"
    singular = {"searches": "search"}.get(group, group[:-1])
    return f"unknown {singular} {name!r}; {hint}"


def listing(group: Group) -> list[Listing]:
    """Every name of a group with one line on it; a broken plugin with its error."""
    found: list[Listing] = []
    for point in sorted(_points(group), key=lambda p: (p.name, p.value)):
        try:
            thing = point.load()
            if group in _PROVIDERS:
                domain = point.name if group == "artifacts" else ""
                found += _provided(thing(), _source(point), domain)
            else:
                found.append(Listing(point.name, _summary(thing), _source(point)))
        except Exception as error:  # noqa: BLE001 - somebody else's code, run to be listed
            found.append(
                Listing(point.name, "", _source(point), f"{type(error).__name__}: {error}")
            )
    return found


def group_of(word: str) -> Group:
    """A group by its name.

    Raises
    ------
    UnknownNameError
    """
    if word not in GROUPS:
        raise UnknownNameError(f"unknown group {word!r}; there are: {', '.join(GROUPS)}")
    return word


def _points(group: Group) -> list[EntryPoint]:
    return list(entry_points(group=f"galoop.{group}"))


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"


def _provided(things: Mapping[str, Any], source: str, domain: str) -> list[Listing]:
    return [Listing(name, _line(things[name]), source, domain=domain) for name in things]


def _line(value: Any) -> str:
    """One line on a provided thing: its own words, or the fields of a mapping."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return str(value.get("summary") or value.get("description") or "")
    return str(getattr(value, "summary", "") or getattr(value, "description", "") or value)


def _summary(thing: Any) -> str:
    lines = (getattr(thing, "__doc__", None) or "").strip().splitlines()
    return lines[0] if lines else ""
