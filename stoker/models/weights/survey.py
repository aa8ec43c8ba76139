"""A checkpoint that a graph is built from to find out what does not fit, all of it, instead of to run.

Gives tensors on torch's meta device; notes what is missing, unexpected or misshapen where `Checkpoint` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from stoker.kernels.linear import Weight
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint, MissingTensorError, Source

META = torch.device("meta")


@dataclass
class Findings:
    """Full names of tensors; `misshapen` says for each what is wrong, `used` are those that the graph holds."""

    used: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    unexpected: list[str] = field(default_factory=list[str])
    misshapen: list[str] = field(default_factory=list[str])


class Survey(Checkpoint):
    """Everything that the graph asks for is there, on the meta device, and `findings` are complete after `finish`."""

    def __init__(self, source: Source, *, mtp: bool = False) -> None:
        super().__init__(source, torch.bfloat16, META, lambda stage, fraction: None, mtp=mtp)
        self.findings = Findings()

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        self._claim(name, shape)
        return torch.empty(shape, dtype=dtype or self.dtype, device=META)

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int, *, bias: bool = False) -> Weight:
        for name, count in zip(names, rows, strict=True):
            self._claim(f"{name}.weight", (count, columns))
            if bias:
                self._claim(f"{name}.bias", (count,))
        return Weight(torch.empty(sum(rows), columns, dtype=self.dtype, device=META))

    def finish(self) -> None:
        self.findings.unexpected = sorted(self._left)

    def _claim(self, name: str, shape: tuple[int, ...]) -> str:
        name, source, found = self._prefix + name, self._source, self.findings
        if name not in source.names:
            found.missing.append(name)
            return name
        self._left.discard(name)
        found.used.append(name)
        try:
            source.check(name)
            if source.shape(name) != shape:
                found.misshapen.append(f"{name} has {list(source.shape(name))}, the configuration says {list(shape)}")
        except MissingTensorError as error:
            found.missing.append(error.name)
        except ModelError as error:
            found.misshapen.append(str(error))
        return name
