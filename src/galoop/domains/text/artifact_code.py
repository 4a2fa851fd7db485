"""Run an artifact's sources in a private set of modules.

Nothing is written to disk and nothing stays behind in :data:`sys.modules`. The sources of one
artifact can import each other by their own names (``import pooling`` for ``pooling.py``); what they
import otherwise is what is installed. This is *not* a security boundary: untrusted artifacts are
loaded inside the isolated worker.
"""

from __future__ import annotations

import ast
import builtins
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from galoop.domains.text.artifact_spec import ArtifactSpec, SpecRules
from galoop.errors import ArtifactError, GaloopError
from galoop.hashing import files_hash
from galoop.types import State


class ArtifactRuntimeError(GaloopError):
    """The artifact's own code failed, or gave back something else than its contract says.

    Attributes
    ----------
    state : State
        ``failed`` when the code raised or exited, ``invalid`` when what it returned breaks the
        contract.
    """

    def __init__(self, what: str, state: State, fix: str = "") -> None:
        super().__init__(what, fix)
        self.state = state


class _SourceLoader:
    """Gives tracebacks the source lines of a module that is in no file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, name: str) -> str:
        return self._text


class ArtifactModules:
    """The modules of one artifact, executed on first import.

    Parameters
    ----------
    files : mapping of relative POSIX path to text
    label : str
        Shown in tracebacks, as in ``<label>/press.py``; one label for one set of files.
    """

    def __init__(self, files: Mapping[str, str], label: str) -> None:
        self._prefix = f"_galoop_artifact_{files_hash(files)[:16]}"
        self._label = label
        self._paths: dict[str, str] = {}  # dotted name -> path of the file
        self._packages: set[str] = {""}
        self._texts = dict(files)
        self._loaded: dict[str, ModuleType] = {}
        for path in files:
            if not path.endswith(".py"):
                continue
            parts = path[: -len(".py")].split("/")
            if parts[-1] == "__init__":
                parts.pop()
                self._packages.add(".".join(parts))
            self._paths[".".join(parts)] = path
            for i in range(1, len(parts)):
                self._packages.add(".".join(parts[:i]))
        self._builtins = dict(vars(builtins))
        self._builtins["__import__"] = self._import

    def load(self, name: str) -> ModuleType:
        """Return the artifact's own module of that dotted name, executing it the first time."""
        if name in self._loaded:
            return self._loaded[name]
        parent, _, leaf = name.rpartition(".")
        if parent:
            self.load(parent)
        path = self._paths.get(name)
        module = ModuleType(f"{self._prefix}.{name}")
        module.__dict__["__builtins__"] = self._builtins
        is_package = name in self._packages
        module.__package__ = module.__name__ if is_package else module.__name__.rpartition(".")[0]
        if is_package:
            module.__path__ = []
        self._loaded[name] = module
        if path is not None:
            self._execute(module, path)
        if parent:
            setattr(self._loaded[parent], leaf, module)
        return module

    def _execute(self, module: ModuleType, path: str) -> None:
        text, filename = self._texts[path], f"{self._label}/{path}"
        loader: Any = _SourceLoader(text)
        module.__file__ = filename
        module.__loader__ = loader
        module.__spec__ = ModuleSpec(module.__name__, loader, origin=filename)
        code = compile(text, filename, "exec", dont_inherit=True)
        # dataclasses and typing look a class's module up in sys.modules while it is being made.
        sys.modules[module.__name__] = module
        try:
            exec(code, module.__dict__)
        except BaseException:
            self._loaded = {k: v for k, v in self._loaded.items() if v is not module}
            raise
        finally:
            sys.modules.pop(module.__name__, None)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        target = self._absolute(name, globals, level) if level else name
        if target is None or (target != "" and target.split(".")[0] not in self._tops()):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if target != "" and target not in self._paths and target not in self._packages:
            raise ModuleNotFoundError(f"No module named {target!r} in the artifact", name=target)
        if not fromlist:
            self.load(target)
            return self.load(target.split(".")[0])
        module = self.load(target) if target else ModuleType(self._prefix)
        for item in fromlist:
            child = f"{target}.{item}" if target else item
            if not hasattr(module, item) and (child in self._paths or child in self._packages):
                setattr(module, item, self.load(child))
        return module

    def _tops(self) -> set[str]:
        return {dotted.split(".")[0] for dotted in self._paths if dotted}

    def _absolute(self, name: str, globals: Mapping[str, Any] | None, level: int) -> str | None:
        """The artifact's dotted name of a relative import; None when it is not the artifact's."""
        package = str((globals or {}).get("__package__") or "")
        if package != self._prefix and not package.startswith(self._prefix + "."):
            return None
        parts = package[len(self._prefix) :].strip(".").split(".")
        parts = [p for p in parts if p]
        if level - 1 > len(parts):
            raise ImportError("attempted relative import beyond the artifact's folder")
        base = parts[: len(parts) - (level - 1)]
        return ".".join([*base, name] if name else base)


def check_sources(files: Mapping[str, str], spec: ArtifactSpec, rules: SpecRules) -> None:
    """Check without running: every source parses and the entry file defines the entry function.

    Raises
    ------
    ArtifactError
        With file and line.
    """
    for path, text in files.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(text, path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            detail = getattr(error, "msg", None) or str(error) or type(error).__name__
            where = f"{path}, line {line}" if line else path
            raise ArtifactError(f"{where}: does not parse: {detail}") from None
        if path == spec.file and not _defines(tree, spec.function):
            raise ArtifactError(
                f"{path} does not define {spec.function!r}, the entry point",
                f"add {rules.signature}",
            )


def _defines(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
    return False


def describe_failure(error: BaseException, label: str = "") -> str:
    """One line saying where in the artifact an exception arose: ``press.py, line 12, in score: …``.

    Only frames of the artifact's own files are named; the message is shortened to 300 characters.
    """
    message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(f"{label}/" if label else "artifact:")
    ]
    if not own:
        return message
    last = own[-1]
    file = last.filename.partition("/")[2] or last.filename
    line = f" `{last.line.strip()[:120]}`" if last.line else ""
    return f"{file}, line {last.lineno}, in {last.name}{line}: {message}"


def artifact_label(files: Mapping[str, str], spec: ArtifactSpec) -> str:
    """What stands for the artifact's folder in tracebacks.

    The hash keeps two artifacts of one name apart in Python's cache of source lines.
    """
    return f"artifact:{spec.name.replace('/', '_')}@{files_hash(files)[:8]}"


def call_entry(
    files: Mapping[str, str], spec: ArtifactSpec, rules: SpecRules, **arguments: Any
) -> Any:
    """Execute an artifact's entry point and return what it gives.

    Raises
    ------
    ArtifactError
        Before anything runs: a source does not parse, or lacks the entry point.
    ArtifactRuntimeError
        The artifact's code raised or exited.
    """
    check_sources(files, spec, rules)
    label = artifact_label(files, spec)
    modules = ArtifactModules(files, label)
    name = spec.file[: -len(".py")].replace("/", ".")
    try:
        return getattr(modules.load(name), spec.function)(**arguments)
    except (Exception, SystemExit) as error:
        raise ArtifactRuntimeError(
            f"artifact {spec.name!r} could not be loaded: {describe_failure(error, label)}",
            State.FAILED,
        ) from error
