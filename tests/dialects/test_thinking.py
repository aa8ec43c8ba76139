from __future__ import annotations

import pytest

from stoker.dialects.fields import Fields
from stoker.dialects.thinking import read_thinking
from stoker.types.errors import StokerError

ON, OFF = {"thinking": True, "enable_thinking": True}, {"thinking": False, "enable_thinking": False}


@pytest.mark.parametrize(
    ("body", "args", "budget"),
    [
        ({}, {}, None),
        ({"thinking": {"type": "enabled"}}, ON, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ON, 1024),
        ({"thinking": {"type": "adaptive"}}, ON, None),
        ({"thinking": {"type": "disabled"}}, OFF, None),
        ({"thinking": {"type": "enabled", "keep": "all"}}, ON | {"preserve_thinking": True}, None),
        ({"thinking": {"type": "enabled", "effort": "low"}}, ON | {"reasoning_effort": "low"}, None),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}, None),
        ({"reasoning_effort": "none"}, OFF, None),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}, None),
        ({"reasoning": {"enabled": False}}, OFF, None),
        ({"reasoning": {"max_tokens": 0}}, {}, 0),
        ({"thinking_token_budget": 5}, {}, 5),
        ({"enable_thinking": False}, OFF, None),
        ({"chat_template_kwargs": {"thinking": False}}, OFF, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, OFF, None),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, ON, None),
        (
            {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"},
            {"reasoning_effort": "low"},
            None,
        ),
        ({"chat_template_kwargs": {"clear_thinking": False}}, {"clear_thinking": False}, None),
    ],
)
def test_all_spellings(body, args, budget):
    assert read_thinking(Fields(body)) == (args, budget)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": {"budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"reasoning_effort": "x" * 257}, "reasoning_effort"),
        ({"thinking_token_budget": 1 << 31}, "thinking_token_budget"),
        ({"enable_thinking": "no"}, "enable_thinking"),
    ],
)
def test_refusals_name_the_parameter(body, param):
    with pytest.raises(StokerError) as failure:
        read_thinking(Fields(body))
    assert failure.value.param == param
