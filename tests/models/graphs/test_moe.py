"""A sparse layer loaded by name from a checkpoint, against transformers' own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

from stoker.kernels.router import Routing
from stoker.models.graphs.moe import Mixture, MoE
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint, Codes

HIDDEN, INNER, EXPERTS = 24, 20, 6


class Tensors:
    """A `Source` over a dictionary."""

    where = "memory"

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def size(self, name: str) -> int:
        return self.tensors[name].nbytes

    def fetch(self, name: str, idle: object) -> None:
        return None

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self.tensors[name].to(dtype)

    def codes(self, name: str) -> Codes | None:
        return None

    def quantized(self, name: str) -> None:
        return None


@pytest.fixture
def reference() -> DeepseekV3MoE:
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        n_routed_experts=EXPERTS,
        n_shared_experts=2,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.5,
    )
    module = DeepseekV3MoE(config)
    random = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.normal_(0, 0.4, generator=random)
    return module


@pytest.fixture
def tensors(reference: DeepseekV3MoE) -> dict[str, torch.Tensor]:
    """As checkpoints name them: every expert's matrices on their own."""
    found = {f"mlp.{name}": tensor for name, tensor in reference.state_dict().items() if ".experts." not in f".{name}"}
    for index in range(EXPERTS):
        gate, up = reference.experts.gate_up_proj[index].chunk(2)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": reference.experts.down_proj[index]}
        found |= {f"mlp.experts.{index}.{name}.weight": tensor for name, tensor in parts.items()}
    return found


@pytest.fixture
def load(tensors: dict[str, torch.Tensor]) -> Callable[..., MoE]:
    def build(shared: int = 2) -> MoE:
        weights = Checkpoint(Tensors(tensors), torch.float32, torch.device("cpu"), lambda stage, fraction: None)
        mixture = Mixture(EXPERTS, INNER, Routing("sigmoid", 2, True, 2.5), corrected=True, shared_inner=shared * INNER)
        layer = MoE.load(weights, "mlp", HIDDEN, mixture)
        weights.finish()
        return layer

    return build


@torch.no_grad()
def test_routed_and_shared_experts(reference: DeepseekV3MoE, load: Callable[..., MoE]) -> None:
    x = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(load()(x), reference(x[None])[0], atol=1e-5, rtol=1e-5)


def test_a_missing_expert_is_named(tensors: dict[str, torch.Tensor], load: Callable[..., MoE]) -> None:
    del tensors["mlp.experts.4.up_proj.weight"]
    with pytest.raises(ModelError, match=r"mlp\.experts\.4\.up_proj\.weight"):
        load()


def test_an_expert_too_many_is_named(tensors: dict[str, torch.Tensor], load: Callable[..., MoE]) -> None:
    tensors["mlp.experts.6.up_proj.weight"] = torch.zeros(INNER, HIDDEN)
    with pytest.raises(ModelError, match=r"mlp\.experts\.6\.up_proj\.weight"):
        load()


def test_unannounced_shared_experts_are_refused(load: Callable[..., MoE]) -> None:
    with pytest.raises(ModelError, match="shared_experts"):
        load(shared=0)
