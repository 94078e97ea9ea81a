"""Weights, operations and activations of a FLUX transformer, from its config.json alone.

D is the width, L the image tokens, T the text tokens, n = L + T. A multiply-add counts as two operations, as torch's
FlopCounterMode counts; norms, rotations and activation functions are not counted there and are not counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tokens = Literal["image", "text", "both", "one"]
"""Rows that a linear layer sees of one image: L, T, n, or one."""

TIME_CHANNELS = 256
"""Channels of the sinusoids of time and guidance (diffusers' CombinedTimestepGuidanceTextProjEmbeddings)."""

MLP_RATIO = 4
"""Hidden width of the MLPs over D (diffusers' FluxTransformerBlock)."""

FLASH_BACKWARD = 2.5
"""Operations of attention's backward pass over those of its forward pass: five products where the forward pass has two,
since the scores are computed again (torch.utils.flop_counter.sdpa_backward_flop)."""


@dataclass(frozen=True)
class Linear:
    """A linear layer with bias.

    Attributes:
        name: Name of the module, with * for the number of a block.
        inputs: Input channels.
        outputs: Output channels.
        tokens: Rows that it sees of one image.
        count: Number of such layers.
    """

    name: str
    inputs: int
    outputs: int
    tokens: Tokens
    count: int = 1

    @property
    def weights(self) -> int:
        """Weights of one layer, with bias."""
        return self.inputs * self.outputs + self.outputs


@dataclass(frozen=True)
class Sequence2D:
    """Tokens of one image and its prompt.

    Attributes:
        image: Latent tokens, L.
        text: Text tokens, T.
    """

    image: int
    text: int

    @property
    def both(self) -> int:
        """N = L + T."""
        return self.image + self.text

    def of(self, tokens: Tokens) -> int:
        """Rows of a linear layer."""
        return {"image": self.image, "text": self.text, "both": self.both, "one": 1}[tokens]


@dataclass(frozen=True)
class Transformer:
    """Sizes of a FluxTransformer2DModel.

    Attributes:
        heads: Attention heads.
        head_channels: Channels of a head; D = heads * head_channels.
        double_blocks: Blocks with weights of their own for image and text.
        single_blocks: Blocks with common weights.
        in_channels: Channels of a latent token.
        out_channels: Channels of a velocity token.
        text_channels: Channels of a text token, E.
        pooled_channels: Channels of the pooled prompt, F.
        has_guidance: Whether the guidance scale is embedded.
    """

    heads: int
    head_channels: int
    double_blocks: int
    single_blocks: int
    in_channels: int
    out_channels: int
    text_channels: int
    pooled_channels: int
    has_guidance: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Transformer:
        """Read transformer/config.json; KeyError if a key is missing."""
        return cls(
            heads=config["num_attention_heads"],
            head_channels=config["attention_head_dim"],
            double_blocks=config["num_layers"],
            single_blocks=config["num_single_layers"],
            in_channels=config["in_channels"],
            out_channels=config.get("out_channels") or config["in_channels"],
            text_channels=config["joint_attention_dim"],
            pooled_channels=config["pooled_projection_dim"],
            has_guidance=config["guidance_embeds"],
        )

    @property
    def width(self) -> int:
        """D."""
        return self.heads * self.head_channels

    @property
    def blocks(self) -> int:
        """Number of blocks of both kinds."""
        return self.double_blocks + self.single_blocks

    def linears(self) -> Iterator[Linear]:
        """All linear layers."""
        yield from self._ends()
        if self.double_blocks:
            yield from self._double()
        if self.single_blocks:
            yield from self._single()

    def _ends(self) -> Iterator[Linear]:
        D = self.width
        yield Linear("x_embedder", self.in_channels, D, "image")
        yield Linear("context_embedder", self.text_channels, D, "text")
        inputs = {"timestep_embedder": TIME_CHANNELS, "text_embedder": self.pooled_channels}
        if self.has_guidance:
            inputs["guidance_embedder"] = TIME_CHANNELS
        for name, channels in inputs.items():
            yield Linear(f"time_text_embed.{name}.linear_1", channels, D, "one")
            yield Linear(f"time_text_embed.{name}.linear_2", D, D, "one")
        yield Linear("norm_out.linear", D, 2 * D, "one")
        yield Linear("proj_out", D, self.out_channels, "image")

    def _double(self) -> Iterator[Linear]:
        D, count, at = self.width, self.double_blocks, "transformer_blocks.*"
        streams: tuple[tuple[Tokens, str, tuple[str, ...], str, str], ...] = (
            ("image", "norm1", ("to_q", "to_k", "to_v"), "to_out.0", "ff"),
            ("text", "norm1_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", "ff_context"),
        )
        for tokens, norm, projections, out, mlp in streams:
            yield Linear(f"{at}.{norm}.linear", D, 6 * D, "one", count)
            for name in (*projections, out):
                yield Linear(f"{at}.attn.{name}", D, D, tokens, count)
            yield Linear(f"{at}.{mlp}.net.0.proj", D, MLP_RATIO * D, tokens, count)
            yield Linear(f"{at}.{mlp}.net.2", MLP_RATIO * D, D, tokens, count)

    def _single(self) -> Iterator[Linear]:
        D, count, at = self.width, self.single_blocks, "single_transformer_blocks.*"
        yield Linear(f"{at}.norm.linear", D, 3 * D, "one", count)
        for name in ("to_q", "to_k", "to_v"):
            yield Linear(f"{at}.attn.{name}", D, D, "both", count)
        yield Linear(f"{at}.proj_mlp", D, MLP_RATIO * D, "both", count)
        yield Linear(f"{at}.proj_out", (MLP_RATIO + 1) * D, D, "both", count)

    @property
    def weights(self) -> int:
        """Number of weights: linear layers, and norms of queries and keys (4 a double block, 2 a single one)."""
        norms = self.head_channels * (4 * self.double_blocks + 2 * self.single_blocks)
        return norms + sum(layer.count * layer.weights for layer in self.linears())

    @property
    def double_weights(self) -> int:
        """Weights of one double block, the unit of a gather; 0 without any."""
        return self._block("transformer_blocks.*", 4)

    @property
    def single_weights(self) -> int:
        """Weights of one single block; 0 without any."""
        return self._block("single_transformer_blocks.*", 2)

    @property
    def outer_weights(self) -> int:
        """Weights outside the blocks."""
        blocks = self.double_blocks * self.double_weights + self.single_blocks * self.single_weights
        return self.weights - blocks

    def _block(self, prefix: str, norms: int) -> int:
        layers = [layer for layer in self.linears() if layer.name.startswith(f"{prefix}.")]
        return sum(layer.weights for layer in layers) + norms * self.head_channels if layers else 0

    @property
    def largest_weight(self) -> int:
        """Elements of the largest weight matrix."""
        return max(layer.inputs * layer.outputs for layer in self.linears())

    def attention_flop(self, tokens: Sequence2D) -> float:
        """Attention of all blocks for one image: 4 n^2 D a block (queries by keys, and scores by values)."""
        return 4.0 * tokens.both**2 * self.width * self.blocks

    def linear_flop(self, tokens: Sequence2D) -> float:
        """Linear layers for one image: 2 * rows * inputs * outputs each."""
        return float(sum(2 * x.count * tokens.of(x.tokens) * x.inputs * x.outputs for x in self.linears()))

    def forward_flop(self, tokens: Sequence2D) -> float:
        """Operations of a forward pass of one image, without an adapter."""
        return self.linear_flop(tokens) + self.attention_flop(tokens)


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter on a transformer.

    Attributes:
        rank: Rank.
        layers: Adapted layers.
    """

    rank: int
    layers: tuple[Linear, ...]

    @classmethod
    def on(cls, network: Transformer, rank: int, targets: Sequence[str]) -> Adapter:
        """The adapter of these targets, by peft's rule: the whole name, or its end after a dot."""
        chosen = [
            layer
            for layer in network.linears()
            if any(layer.name == target or layer.name.endswith(f".{target}") for target in targets)
        ]
        return cls(rank, tuple(chosen))

    @property
    def weights(self) -> int:
        """Number of weights: rank * (inputs + outputs) a layer."""
        return sum(layer.count * self.rank * (layer.inputs + layer.outputs) for layer in self.layers)

    def flop(self, tokens: Sequence2D) -> float:
        """Operations of a forward pass of one image: 2 * rows * rank * (inputs + outputs) a layer."""
        return float(
            sum(2 * x.count * tokens.of(x.tokens) * self.rank * (x.inputs + x.outputs) for x in self.layers)
        )


@dataclass(frozen=True)
class Tuning:
    """How a transformer is trained.

    Attributes:
        network: Transformer.
        adapter: Adapter that is trained instead of all weights, or None.
        checkpointing: Whether blocks are computed again in the backward pass.
    """

    network: Transformer
    adapter: Adapter | None
    checkpointing: bool

    @property
    def trained_weights(self) -> int:
        """Number of trained weights."""
        return self.network.weights if self.adapter is None else self.adapter.weights

    def trained_rows(self) -> Iterator[tuple[int, int]]:
        """Rows of the trained matrices: number of such rows, and their length."""
        if self.adapter is None:
            yield from ((layer.count * layer.outputs, layer.inputs) for layer in self.network.linears())
            return
        for layer in self.adapter.layers:
            yield layer.count * self.adapter.rank, layer.inputs
            yield layer.count * layer.outputs, self.adapter.rank

    def forward_flop(self, tokens: Sequence2D) -> float:
        """Operations of a forward pass of one image with the adapter."""
        extra = 0.0 if self.adapter is None else self.adapter.flop(tokens)
        return self.network.forward_flop(tokens) + extra

    def backward_flop(self, tokens: Sequence2D) -> float:
        """Operations of the backward pass of one image, without recomputation.

        A trained linear layer costs twice its forward pass (gradients of inputs and of weights), a frozen one once;
        attention `FLASH_BACKWARD` times.
        """
        network = self.network
        attention = FLASH_BACKWARD * network.attention_flop(tokens)
        if self.adapter is None:
            return attention + 2 * network.linear_flop(tokens)
        return attention + network.linear_flop(tokens) + 2 * self.adapter.flop(tokens)

    def recomputed_flop(self, tokens: Sequence2D) -> float:
        """Operations of gradient checkpointing: the forward pass once more; 0 without it."""
        return self.forward_flop(tokens) if self.checkpointing else 0.0
