"""Lloyd's k-means for many small problems at once, in bounded memory.

Distances are expanded, ‖x − c‖² = ‖x‖² − 2 x·c + ‖c‖² (the first term changes no arg-min and is
left out), and computed for a tile of points at a time: the largest array is (problems, tile,
centroids), never one of points × centroids × dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def nearest(points: torch.Tensor, centroids: torch.Tensor, tile: int = 4096) -> torch.Tensor:
    """Number of the nearest centroid of each point.

    Parameters
    ----------
    points : Tensor, shape (P, n, d)
        P problems.
    centroids : Tensor, shape (P, K, d)
    tile : int
        Points at a time.

    Returns
    -------
    Tensor, int64, shape (P, n)
        Of equally near ones the first.
    """
    import torch

    parts = [_distances(part, centroids).argmin(-1) for part in points.split(tile, dim=1)]
    return torch.cat(parts, dim=1)


def kmeans(
    points: torch.Tensor, k: int, *, iterations: int = 10, seed: int = 0, tile: int = 4096
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cluster each problem's points around k centroids.

    Parameters
    ----------
    points : Tensor, shape (P, n, d)
        P problems of n points each; computed in float32 or wider.
    k : int
        Centroids. With n ≤ k points each point is a centroid (the last one fills up the rest).
    iterations : int
        Fixed, so that a result does not depend on how fast a machine is.
    seed : int
        Of the first centroids: k different points, the same numbers in every problem.
    tile : int
        Points at a time. It changes memory and speed; results by rounding only.

    Returns
    -------
    centroids : Tensor, shape (P, k, d)
        A centroid that loses its points stays where it is.
    codes : Tensor, int64, shape (P, n)
        Nearest centroid of each point.
    """
    import torch

    points = points.to(torch.promote_types(points.dtype, torch.float32))
    n = points.shape[1]
    if n <= k:
        fill = points[:, -1:].expand(-1, k - n, -1)
        own = torch.arange(n, device=points.device).expand(points.shape[0], n)
        return torch.cat([points, fill], dim=1), own
    generator = torch.Generator().manual_seed(seed)
    first = torch.randperm(n, generator=generator)[:k].to(points.device)
    centroids = points[:, first]
    for _ in range(iterations):
        centroids = _means(points, centroids, tile)
    return centroids, nearest(points, centroids, tile)


def _distances(points: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """‖c‖² − 2 x·c, (P, n, K)."""
    import torch

    square = centroids.square().sum(-1)[:, None]
    return torch.baddbmm(square, points, centroids.transpose(1, 2), alpha=-2.0)


def _means(points: torch.Tensor, centroids: torch.Tensor, tile: int) -> torch.Tensor:
    """Mean of the points nearest to each centroid."""
    import torch

    total = torch.zeros_like(centroids)
    count = torch.zeros_like(centroids[..., :1])
    for part, codes in _coded(points, centroids, tile):
        # A product with the one-hot table adds in a fixed order; scattering does not everywhere.
        table = torch.nn.functional.one_hot(codes, centroids.shape[1]).to(part.dtype)
        total += table.transpose(1, 2) @ part
        count += table.sum(1)[..., None]
    return torch.where(count > 0, total / count.clamp(min=1), centroids)


def _coded(
    points: torch.Tensor, centroids: torch.Tensor, tile: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for part in points.split(tile, dim=1):
        yield part, _distances(part, centroids).argmin(-1)
