"""Which form latent attention takes for the rows of one entry: whichever computes less. Pure.

Absorbed, queries go to where the cached latents are: nothing is made for the context, but every
score and every sum is as wide as the cache. Expanded, the latents of the context become the keys
and values that each head has of its own: scores and sums are narrow, but the whole context has to
be expanded again for every chunk. So few rows are absorbed and many are expanded.

Counted are the multiplications of one head, as attention here does them: it takes keys and values
of one width. All heads of a model have the same. How fast a machine does either is left out.
Source: https://arxiv.org/abs/2405.04434
"""

from __future__ import annotations

from stage_worker.latent_config import LatentConfig


def absorbed_cost(latent: LatentConfig, num_rows: int, num_before: int) -> int:
    """Return multiplications in the absorbed form: scores, sums, and both ways of each row.

    The num_rows >= 1 rows see num_before >= 0 tokens, themselves, and those of them before.
    Attention takes keys and values of one width, so sums carry the turned part along.
    """
    moved = num_rows * latent.rank * (latent.plain_dim + latent.value_dim)
    return 2 * latent.cached_dim * _pairs(num_rows, num_before) + moved


def expanded_cost(latent: LatentConfig, num_rows: int, num_before: int) -> int:
    """Return multiplications in the expanded form: scores, sums, and the expansion."""
    num_tokens = num_before + num_rows
    expanded = num_tokens * latent.rank * (latent.plain_dim + latent.value_dim)
    return 2 * latent.expanded_dim * _pairs(num_rows, num_before) + expanded


def is_expanded(latent: LatentConfig, num_rows: int, num_before: int) -> bool:
    """Say whether to expand.

    Behind a long context this is rank * (plain + value) < 2 * (cached - expanded) * num_rows, from
    171 rows on at DeepSeek's widths; without one, always where heads are narrower than the cache.
    """
    absorbed = absorbed_cost(latent, num_rows, num_before)
    return expanded_cost(latent, num_rows, num_before) < absorbed


def _pairs(num_rows: int, num_before: int) -> int:
    """Return how many pairs of a row and a token that it sees there are."""
    return num_rows * num_before + num_rows * (num_rows + 1) // 2
