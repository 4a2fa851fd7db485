"""Models by hub name, local folder, GGUF file, or by the names of the ones that come with galoop.

:func:`resolve` finds a model (and fetches and converts it, once), :func:`load` makes torch modules
of it. Nothing here imports torch or transformers before one of them is called.
"""

from galoop.models.cache import cache_root
from galoop.models.dtypes import auto_dtype, resolve_dtype
from galoop.models.info import ModelEntry, ModelInfo, UnknownModelError
from galoop.models.loading import load, load_tokenizer
from galoop.models.resolution import EMBEDDED, FAST, fetch, known_models, list_models, resolve

__all__ = [
    "EMBEDDED",
    "FAST",
    "ModelEntry",
    "ModelInfo",
    "UnknownModelError",
    "auto_dtype",
    "cache_root",
    "fetch",
    "known_models",
    "list_models",
    "load",
    "load_tokenizer",
    "resolve",
    "resolve_dtype",
]
