"""The blocks of a model on new tokens, as a sequence of kernels.

decoder          project, attend, output, up, down
with an encoder  project, attend, output, query, attend to the source, output, up, down
"""

from __future__ import annotations

from torch import Tensor

from chumoku.decoding.engines.gpu import launch, launch_attention
from chumoku.decoding.engines.gpu.sources import SourceStore
from chumoku.decoding.engines.gpu.tables import ScoreBias, Scoring, Tables, read_scoring
from chumoku.decoding.engines.gpu.weights import (
    GATES,
    CrossAttention,
    ExpertWeights,
    Layer,
    Matrix,
    SublayerNorms,
    UpDown,
    read_layers,
)
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.moe import can_group


class Blocks:
    """The blocks of a decoder, or of the decoder of an encoder-decoder."""

    def __init__(self, model: DecoderModel | EncoderDecoderModel, launcher: launch.Launcher) -> None:
        self.layers = read_layers(model)
        self._config, self._launcher = model.config, launcher

    def run(
        self,
        x: Tensor,
        where: launch_attention.TokenPlaces,
        workspace: launch_attention.Workspace,
        *,
        cache: Tensor,
        sources: SourceStore,
        tables: Tables,
        together: bool = False,
    ) -> Tensor:
        """Vectors [n, D] through the blocks; with `together`, new tokens of one row attend to each other.

        cache: keys and values of all rows [L, 2, rows, G, C, K], to which those of the new tokens are written.
        """
        launcher, config = self._launcher, self._config
        queries, keys = config.heads * config.key_width, (config.heads + config.key_heads) * config.key_width
        for number, (layer, cached) in enumerate(zip(self.layers, cache, strict=True)):
            start, place = x, rotated(where, layer, tables)
            projected = launch.multiply(
                launcher, x, layer.projection, norm=layer.attention_norms.input, first=not number
            )
            launch.normalize_part(launcher, projected, 0, queries, layer.query_norm)
            launch.normalize_part(launcher, projected, queries, keys, layer.key_norm)
            if together:
                launch_attention.write_cache(launcher, projected, cached, place, heads=config.heads)
            scoring = self._scoring(layer, tables)
            heads = launch_attention.attend(
                launcher, projected, cached, place, workspace, heads=config.heads, scoring=scoring, first=together
            )
            x = self._add(x, heads, layer.output, layer.attention_norms)
            if layer.cross is not None:
                x = self._attend_source(x, layer.cross, sources, number, where)
            given = start if config.parallel else x
            if isinstance(layer.feedforward, UpDown):
                hidden = self._hidden(given, layer.feedforward.up, layer.feedforward_norms)
                x = self._add(x, hidden, layer.feedforward.down, layer.feedforward_norms)
            else:
                x = self._add_experts(x, given, layer.feedforward, layer.feedforward_norms)
        return x

    def _attend_source(
        self, x: Tensor, cross: CrossAttention, sources: SourceStore, number: int, where: launch_attention.TokenPlaces
    ) -> Tensor:
        launcher, heads, scoring = self._launcher, self._config.heads, read_scoring(self._config)
        queries = launch.multiply(launcher, x, cross.query, norm=cross.norms.input)
        launch.normalize_part(launcher, queries, 0, queries.shape[1], cross.query_norm)
        attended = launch_attention.attend_source(
            launcher, queries, sources.store[number], where, sources.lengths, heads=heads, scoring=scoring
        )
        return self._add(x, attended, cross.output, cross.norms)

    def _hidden(self, x: Tensor, up: Matrix, norms: SublayerNorms) -> Tensor:
        kind = self._config.feedforward
        activation, gated = GATES.get(kind, kind), kind in GATES
        return launch.multiply(self._launcher, x, up, norm=norms.input, activation=activation, gated=gated)

    def _add_experts(self, x: Tensor, given: Tensor, feed: ExpertWeights, norms: SublayerNorms) -> Tensor:
        """x after the experts, which are computed from `given`."""
        launcher, kind = self._launcher, self._config.feedforward
        given = given if norms.input is None else launch.normalize(launcher, given, norms.input)
        if len(given) > launch.EXPERT_ROWS and can_group(given, feed.module.experts.up):
            y = feed.module(given)
        else:
            logits = launch.multiply(launcher, given, feed.router)
            y = launch.run_experts(launcher, given, logits, feed.module, activation=GATES.get(kind, kind))
            if feed.shared is not None and feed.shared_router is not None:
                shared = launch.multiply(
                    launcher, self._hidden(given, feed.shared.up, SublayerNorms()), feed.shared.down
                )
                y += launch.multiply(launcher, given, feed.shared_router).sigmoid() * shared
        x = x + (y if norms.output is None else launch.normalize(launcher, y, norms.output))
        return x if norms.sum is None else launch.normalize(launcher, x, norms.sum)

    def _scoring(self, layer: Layer, tables: Tables) -> Scoring:
        window = self._config.attention_window if layer.local else None
        bias = tables.bias if layer.relative is None else ScoreBias("vectors", layer.relative)
        return read_scoring(self._config)._replace(window=window, bias=bias)

    def _add(self, x: Tensor, inputs: Tensor, matrix: Matrix, norms: SublayerNorms) -> Tensor:
        """x after a sublayer whose last product is that of `inputs` and `matrix`."""
        if norms.output is None:
            x = launch.multiply(self._launcher, inputs, matrix, residual=x)
        else:
            x = x + launch.normalize(self._launcher, launch.multiply(self._launcher, inputs, matrix), norms.output)
        return x if norms.sum is None else launch.normalize(self._launcher, x, norms.sum)


def rotated(where: launch_attention.TokenPlaces, layer: Layer, tables: Tables) -> launch_attention.TokenPlaces:
    """The places of tokens, with their rotation if this layer has one."""
    if not layer.rotated:
        return where
    return where._replace(rotation=tables.local_rotation if layer.local else tables.rotation)
