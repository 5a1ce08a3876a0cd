"""How large a model is: what its layers multiply, keep and pass on. Pure values."""

from __future__ import annotations

import dataclasses

from chunkmesh.layers import LayerRange


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One decoder layer. Norms and biases are left out."""

    parameters: int
    """All weights."""
    active_parameters: int
    """Weights that one token is multiplied with, <= parameters: few of a layer's experts."""
    unpacking_parameters: int = 0
    """Those that a chunk multiplies every token before it with: a latent's way to keys."""
    pair_width: int
    """Products of a query with a key and its value, over all heads."""
    cache_width: int
    """Elements that the cache keeps of a token."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A whole model."""

    name: str
    hidden_size: int
    vocab_size: int
    has_tied_head: bool
    """Whether the head's weights are the embedding's."""
    context_tokens: int | None
    """Longest prompt and output together that the model was made for, if it says so."""
    layers: tuple[LayerShape, ...]
    """At least one."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def head_parameters(self) -> int:
        """Weights of the head, and of the embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def whole(self) -> LayerRange:
        """All layers."""
        return LayerRange(first=0, last=self.num_layers)

    def parameters(self, layers: LayerRange) -> int:
        """Return the weights that a stage of these layers loads."""
        held = sum(layer.parameters for layer in self.layers[layers.first : layers.last])
        is_first, is_last = layers.first == 0, layers.last == self.num_layers
        num_ends = is_first + is_last
        if num_ends > 1 and self.has_tied_head:
            num_ends = 1
        return held + num_ends * self.head_parameters

    def active_parameters(self) -> int:
        """Return the weights that a token is multiplied with, the head included."""
        return sum(layer.active_parameters for layer in self.layers) + self.head_parameters

    def cache_width(self, layers: LayerRange) -> int:
        """Return the elements that the cache keeps of a token in these layers."""
        return sum(layer.cache_width for layer in self.layers[layers.first : layers.last])
