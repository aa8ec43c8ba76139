"""Prompts of families whose form is known, without their Jinja templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.models.text.family import Family
from stoker.models.text.renderers import glm, kimi
from stoker.models.text.turns import Conversation, from_request
from stoker.types.chat import ChatRequest
from stoker.types.errors import invalid

Renderer = Callable[[Conversation], Iterator[str]]

RENDERERS: Mapping[Family, Renderer] = {
    Family.KIMI_K2: kimi.K2.render,
    Family.KIMI_K2_THINKING: kimi.K2_THINKING.render,
    Family.KIMI_K25: kimi.K25.render,
    Family.KIMI_K26_PRESERVE: kimi.K25.render,
    Family.GLM45: glm.GLM45.render,
    Family.GLM47: glm.GLM47.render,
    Family.GLM53: glm.GLM53.render,
    Family.GLM53_FLASH: glm.GLM53_FLASH.render,
}
"""Each yields the prompt in texts: those of class `Fixed` are the template's, all others count as the client's."""

IMAGE_TOKENS: Mapping[Family, str] = {Family.KIMI_K25: kimi.IMAGE, Family.KIMI_K26_PRESERVE: kimi.IMAGE}
"""The control token that stands for an image, or a piece of one, in families that see."""

SERVED: Mapping[Family, Mapping[str, Any]] = {
    Family.KIMI_K26_PRESERVE: {"preserve_thinking": True},
    Family.GLM47: {"clear_thinking": False},
    Family.GLM53: {"clear_thinking": False},
    Family.GLM53_FLASH: {"clear_thinking": False},
}
"""What holds when a request is served and says nothing else: reasoning of earlier turns stays where the maker has a
switch for it, so that a turn's prompt begins with all of the turn before."""


def render(family: Family, conversation: Conversation) -> list[str]:
    """The prompt exactly as the maker's template writes it. Raises StokerError (INVALID) for what it cannot hold."""
    try:
        return list(RENDERERS[family](conversation))
    except RecursionError as error:
        raise invalid("too_deeply_nested", "a JSON value of the conversation is nested too deeply") from error


def serve(family: Family, request: ChatRequest) -> list[str]:
    """The prompt of a request: the family's served defaults, and call ids in the family's own form."""
    conversation = from_request(request, SERVED.get(family, {}))
    return render(family, kimi.native_ids(conversation) if family.startswith("kimi_") else conversation)
