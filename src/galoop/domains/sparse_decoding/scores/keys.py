"""Scores that approximate the products of queries and keys from less than the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.kmeans import kmeans
from galoop.methods.pqcache import approximate_scores, split
from galoop.methods.quest import bounds, page_bounds

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Step

    Index = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Subset:
    """Exact products over some dimensions: those in which the keys are large.

    Parameters
    ----------
    share : float
        Of a head's dimensions.
    by : {"size", "spread"}
        Dimensions with the greatest mean square, or with the greatest variance.

    Notes
    -----
    The idea is SparQ's (Ribar et al., arXiv:2312.04985) and Loki's, with fixed dimensions.
    """

    share: float = 0.25
    by: str = "size"

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The chosen dimensions, (1, J, d), and the keys in them, (1, J, n, d)."""
        wide = keys.float()
        size = wide.var(2, correction=0) if self.by == "spread" else wide.square().mean(2)
        count = max(1, round(self.share * keys.shape[3]))
        dims = size.topk(count, dim=-1).indices.sort(-1).values
        return {"dims": dims, "keys": _take(keys, dims)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Products over the chosen dimensions."""
        import torch

        keys = torch.cat([index["keys"], _take(step.keys, index["dims"])], dim=2).float()
        dims = index["dims"][:, :, None, None].expand(-1, -1, *step.grouped().shape[2:4], -1)
        return _products(step.grouped().float().gather(-1, dims), keys)


@dataclass(frozen=True)
class Projected:
    """Products in a subspace.

    Parameters
    ----------
    share : float
        Its dimensions, of a head's; at most a quarter of the context's tokens, so that the basis
        stays small.
    kind : {"principal", "random"}
        The principal directions of the context's keys (uncentred), or random ones.
    seed : int
        Of the random ones.
    """

    share: float = 0.25
    kind: str = "principal"
    seed: int = 0

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """An orthonormal basis, (1, J, D, d), and the keys in it, (1, J, n, d)."""
        import torch

        wide = keys.float()
        _, heads, n, dim = keys.shape
        rank = max(1, min(round(self.share * dim), n // 4))
        if self.kind == "random":
            generator = torch.Generator().manual_seed(self.seed)
            basis = torch.linalg.qr(torch.randn(1, heads, dim, rank, generator=generator)).Q
        else:
            basis = torch.linalg.eigh(wide.transpose(-1, -2) @ wide).eigenvectors[..., -rank:]
        return {"basis": basis.to(keys.dtype), "keys": (wide @ basis).to(keys.dtype)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Products of the projections."""
        import torch

        basis = index["basis"].float()
        keys = torch.cat([index["keys"].float(), step.keys.float() @ basis], dim=2)
        return _products(step.grouped().float() @ basis[:, :, None], keys)


@dataclass(frozen=True)
class Quantised:
    """Products with product-quantised keys (PQCache's score).

    Parameters
    ----------
    subvectors : int
        As far as they divide the head's dimensions.
    bits : int
        2^bits centroids, and at most a quarter as many as there are tokens.
    seed : int
        Of k-means, 10 iterations.
    """

    subvectors: int = 2
    bits: int = 6
    seed: int = 0

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Centroids (1, J, m, K, D/m) and codes (1, J, m, n)."""
        import torch

        m = self.subvectors if keys.shape[3] % self.subvectors == 0 else 1
        size = max(1, min(2**self.bits, keys.shape[2] // 4))
        parts = split(keys.float(), m)
        centroids, codes = kmeans(parts.flatten(0, 2), size, seed=self.seed)
        return {
            "centroids": centroids.unflatten(0, parts.shape[:3]).to(keys.dtype),
            "codes": codes.unflatten(0, parts.shape[:3]).to(torch.uint8),
        }

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Sums of products with each key's centroids."""
        return approximate_scores(step, index["centroids"].float(), index["codes"])


@dataclass(frozen=True)
class Rounded:
    """Products with keys whose coordinates are rounded to a few levels.

    Parameters
    ----------
    levels : int
        Odd; between the least and the greatest value of each dimension. One byte each.
    """

    levels: int = 15

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Codes (1, J, n, D), and each dimension's least value and step, (1, J, 1, D)."""
        import torch

        wide = keys.float()
        low = wide.amin(2, keepdim=True)
        step = (wide.amax(2, keepdim=True) - low).clamp(min=1e-6) / (self.levels - 1)
        codes = ((wide - low) / step).round().to(torch.uint8)
        return {"codes": codes, "low": low.to(keys.dtype), "step": step.to(keys.dtype)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Products with the rounded keys; later entries are as they are."""
        import torch

        keys = index["codes"].float() * index["step"].float() + index["low"].float()
        return _products(step.grouped().float(), torch.cat([keys, step.keys.float()], dim=2))


@dataclass(frozen=True)
class PageBounds:
    """The upper bound of the scores in an entry's page (Quest's), for each of its entries.

    Parameters
    ----------
    page : int
        Entries of a page. Entries after the context are pages of one.
    """

    page: int = 8

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Least and greatest values, (1, J, P, D)."""
        low, high = page_bounds(keys, self.page)
        return {"low": low, "high": high}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Bounds, spread over the entries of a page."""
        import torch

        low = torch.cat([index["low"], step.keys], dim=2)
        high = torch.cat([index["high"], step.keys], dim=2)
        return _over_pages(bounds(step, low, high), index["low"].shape[2], self.page, step)


@dataclass(frozen=True)
class PageMeans:
    """The product with the mean key of an entry's page, for each of its entries.

    Parameters
    ----------
    page : int
        Entries of a page. Entries after the context are pages of one.
    """

    page: int = 8

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Mean keys, (1, J, P, D)."""
        import torch

        pages = keys.float().split(self.page, dim=2)
        means = torch.stack([page.mean(2) for page in pages], dim=2)
        return {"means": means.to(keys.dtype)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Products with the means, spread over the entries of a page."""
        import torch

        means = torch.cat([index["means"], step.keys], dim=2).float()
        scores = _products(step.grouped().float(), means)
        return _over_pages(scores, index["means"].shape[2], self.page, step)


def _take(keys: torch.Tensor, dims: torch.Tensor) -> torch.Tensor:
    return keys.gather(-1, dims[:, :, None].expand(-1, -1, keys.shape[2], -1))


def _products(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """(1, J, G, R, d) and (1, J, L, d) -> (1, H, R, L)."""
    return (queries @ keys[:, :, None].transpose(-1, -2)).flatten(1, 2)


def _over_pages(scores: torch.Tensor, pages: int, page: int, step: Step) -> torch.Tensor:
    """Scores of ``pages`` pages of the context and of each later entry, entry by entry."""
    import torch

    context = scores[..., :pages].repeat_interleave(page, dim=-1)[..., : step.context]
    return torch.cat([context, scores[..., pages:]], dim=-1)
