"""Distances between embedded texts, between sets of them, and between rows of figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]


def unit(vectors: NDArray[np.floating]) -> Vectors:
    """Rows scaled to length 1; a row of zeros stays one.

    Parameters
    ----------
    vectors : array of shape (n, d)
    """
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def cosine_distances(vectors: NDArray[np.floating]) -> Vectors:
    """1 - cosine between all rows, in [0, 2]; 0 on the diagonal.

    Parameters
    ----------
    vectors : array of shape (n, d)

    Returns
    -------
    array of shape (n, n)
    """
    rows = unit(vectors)
    found = np.clip(1.0 - rows @ rows.T, 0.0, 2.0)
    np.fill_diagonal(found, 0.0)
    return found


def set_distances(sets: Sequence[NDArray[np.floating]]) -> Vectors:
    """Mean cosine distance between the members of sets.

    Off the diagonal over all pairs of a member of one and a member of the other; on the diagonal
    over all pairs of different members, 0 for a set of one.

    Parameters
    ----------
    sets : sequence of arrays of shape (n_i, d), n_i ≥ 1

    Returns
    -------
    array of shape (len(sets), len(sets))
    """
    rows = [unit(vectors) for vectors in sets]
    # The mean of all dot products is the dot product of the means.
    means = np.array([r.mean(axis=0) for r in rows])
    found = np.clip(1.0 - means @ means.T, 0.0, 2.0)
    for i, r in enumerate(rows):
        n = len(r)
        alike = float(np.sum(r.sum(axis=0) ** 2) - np.sum(r * r))
        found[i, i] = max(0.0, 1.0 - alike / (n * (n - 1))) if n > 1 else 0.0
    return found


def vendi(vectors: NDArray[np.floating]) -> float:
    """Effective number of different rows: 1 when all are equal, n when all are orthogonal.

    The exponential of the entropy of the eigenvalues of the cosine similarities over n.

    Source: Friedman and Dieng, The Vendi Score, TMLR 2023.

    Parameters
    ----------
    vectors : array of shape (n, d), n ≥ 1, no row of zeros
    """
    rows = unit(vectors)
    shares = np.clip(np.linalg.eigvalsh(rows @ rows.T / len(rows)), 0.0, None)
    shares = shares[shares > 1e-12]
    return float(np.exp(-np.sum(shares * np.log(shares))))


def mean_of_pairs(rows: Sequence[Sequence[float | None]]) -> float | None:
    """Mean over pairs of different items of a symmetric table; None where nothing was measured."""
    known = [v for i, row in enumerate(rows) for v in row[:i] if v is not None]
    return sum(known) / len(known) if known else None


def column_distances(table: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    """Mean absolute difference between columns over the rows that hold both.

    Parameters
    ----------
    table : sequence of rows of equal length; None: not measured

    Returns
    -------
    list of list of float or None
        None where no row holds both.
    """
    count = len(table[0]) if table else 0
    found: list[list[float | None]] = []
    for i in range(count):
        line: list[float | None] = []
        for j in range(count):
            pairs = [(row[i], row[j]) for row in table]
            apart = [abs(a - b) for a, b in pairs if a is not None and b is not None]
            line.append(sum(apart) / len(apart) if apart else None)
        found.append(line)
    return found
