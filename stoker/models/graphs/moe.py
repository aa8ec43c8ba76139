"""The sparse feed-forward part: routed experts, and beside them experts that every token shares."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch

from stoker.kernels.experts import ExpertWeights, mix_experts
from stoker.kernels.router import Routing, route
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes of one sparse layer. `shared_inner` is the width of all shared experts together, 0 without any."""

    experts: int
    inner: int
    routing: Routing
    corrected: bool
    shared_inner: int = 0

    def check(self, where: str) -> None:
        """Raises ModelError if so many experts cannot be chosen in this way."""
        rule, size = self.routing, self.experts // self.routing.groups
        if rule.top_k > rule.kept_groups * size or self.experts % rule.groups or rule.kept_groups > rule.groups:
            raise ModelError(
                f"{where}: {rule.top_k} of {self.experts} experts within {rule.kept_groups} of {rule.groups} groups: "
                "the groups must be equal, and hold enough experts"
            )
        if rule.kept_groups < rule.groups and size < 2:
            raise ModelError(f"{where}: groups of one expert are not supported, a group is scored by its two best")


class CorrectedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a configuration that the models routed in DeepseekV3's way share: sigmoid scores, whose choice a
    stored correction evens out."""

    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float

    @property
    def mixture(self) -> Mixture:
        return Mixture(
            experts=self.n_routed_experts,
            inner=self.moe_intermediate_size,
            routing=Routing(
                scoring="sigmoid",
                top_k=self.num_experts_per_tok,
                normalise=self.norm_topk_prob,
                scale=self.routed_scaling_factor,
                groups=self.n_group,
                kept_groups=self.topk_group,
            ),
            corrected=True,
            shared_inner=self.moe_intermediate_size * self.n_shared_experts,
        )


@dataclass(frozen=True, slots=True)
class MoE:
    """shared(x) + sum of share * expert(x)."""

    routing: Routing
    gate: torch.Tensor
    correction: torch.Tensor | None
    gate_up: ExpertWeights
    down: ExpertWeights
    shared: GatedMLP | None

    @classmethod
    def load(
        cls,
        weights: Checkpoint,
        name: str,
        hidden: int,
        mixture: Mixture,
        matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> MoE:
        """The tensors below `name`; `matrices` are the names of an expert's own."""
        count, inner, (gate, up, down) = mixture.experts, mixture.inner, matrices
        each = [f"{name}.experts.{index}" for index in range(count)]
        return cls(
            mixture.routing,
            weights.tensor(f"{name}.gate.weight", (count, hidden), torch.float32),
            weights.tensor(f"{name}.gate.e_score_correction_bias", (count,), torch.float32)
            if mixture.corrected
            else None,
            weights.experts([[f"{one}.{gate}", f"{one}.{up}"] for one in each], [inner, inner], hidden),
            weights.experts([[f"{one}.{down}"] for one in each], [hidden], inner),
            GatedMLP.load(weights, f"{name}.shared_experts", hidden, mixture.shared_inner)
            if mixture.shared_inner
            else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        shares, chosen = route(x, self.gate, self.correction, self.routing)
        routed = mix_experts(x, shares, chosen, self.gate_up, self.down)
        return routed if self.shared is None else routed + self.shared(x)
