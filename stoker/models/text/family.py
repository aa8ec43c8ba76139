"""Which family a model belongs to: who renders its prompts and which format its output has.

Found from the configuration and the chat template's own words; no names of repositories or folders.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from stoker.models.source import ModelFiles, read_json
from stoker.models.text.taught import knows_tools


class Family(StrEnum):
    """The families with a renderer of their own are those up to GLM53_FLASH; the others use the model's template."""

    KIMI_K2 = "kimi_k2"
    KIMI_K2_THINKING = "kimi_k2_thinking"
    KIMI_K25 = "kimi_k25"
    KIMI_K26_PRESERVE = "kimi_k26_preserve"  # K2.6: reasoning of earlier turns can stay
    GLM45 = "glm45"  # GLM-4.5 and 4.6
    GLM47 = "glm47"
    GLM53 = "glm53"
    GLM53_FLASH = "glm53_flash"
    GLM5 = "glm5"  # GLM-5, 5.1 and 5.2: own template, the calls of GLM-4.7
    HERMES = "hermes"  # <tool_call> with a JSON object, by the template or because it is taught (`taught.py`)
    THINK = "think"  # reasoning in <think>, calls in an unknown form
    PLAIN = "plain"


def detect_family(files: ModelFiles, template: str | None) -> Family:
    """`template` is the text of the model's chat template, None if it has none. Raises ModelError for a configuration
    that cannot be read."""
    text = template or ""
    kind = _kind(files)
    if kind == "kimi_k25" or "tools_ts_str" in text:
        return Family.KIMI_K26_PRESERVE if "preserve_thinking" in text else Family.KIMI_K25
    if kind in ("kimi_k2", "kimi_linear") or "<|im_middle|>" in text:
        return Family.KIMI_K2_THINKING if "<think>" in text else Family.KIMI_K2
    if kind == "glm5_next":
        return Family.GLM53_FLASH
    if kind == "glm_moe_dsa" and (template is None or "defer_loading" in text):
        return Family.GLM53
    if "[gMASK]" in text and "<arg_key>" in text:
        return _glm(kind, text)
    if ("<tool_call>" in text and "arguments" in text) or (text and not knows_tools(text)):
        return Family.HERMES
    return Family.THINK if "<think>" in text else Family.PLAIN


def _kind(files: ModelFiles) -> str:
    """`model_type` as safetensors folders have it; for a GGUF file the template must say it all."""
    path = Path(files.root) / "config.json"
    if files.gguf is not None or not path.is_file():
        return ""
    config: dict[str, Any] = read_json(path)
    return str(config.get("model_type"))


def _glm(kind: str, template: str) -> Family:
    if "/nothink" in template:
        return Family.GLM45
    if "defer_loading" in template:
        return Family.GLM53_FLASH if "<|begin_of_image|>" in template else Family.GLM53
    return Family.GLM47 if kind in ("glm4_moe", "glm4_moe_lite") and "clear_thinking" in template else Family.GLM5
