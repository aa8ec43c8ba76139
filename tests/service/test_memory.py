from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.service.memory import OVERHEAD, Memory
from stoker.types.chat import Message, ToolCall


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def turns(size: int) -> tuple[Message, ...]:
    return (Message(role="user", content="x" * (size - OVERHEAD)),)


def test_only_its_own_tenant_finds_a_conversation():
    memory = Memory(lambda: 1 << 20, 60.0)
    memory.put("ann", "resp_1", turns(300))
    assert memory.get("ann", "resp_1") == turns(300)
    assert memory.get("bob", "resp_1") is None
    assert memory.get("ann", "resp_2") is None


def test_nothing_is_given_out_too_late_and_then_it_is_freed():
    clock = Clock()
    memory = Memory(lambda: 1 << 20, 60.0, clock)
    memory.put("ann", "old", turns(300))
    clock.now = 60.0
    assert memory.get("ann", "old") is not None
    clock.now = 60.1
    assert memory.get("ann", "old") is None
    memory.put("bob", "new", turns(300))
    assert memory._kept["ann"] == {}
    assert memory._sizes["ann"] == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(OVERHEAD, 3000)), max_size=40))
def test_each_tenant_has_its_limit_and_the_newest_stay(puts):
    memory = Memory(lambda: 4000, 60.0)
    for number, (tenant, size) in enumerate(puts):
        memory.put(tenant, str(number), turns(size))
    for tenant in "ab":
        mine = [(str(number), size) for number, (owner, size) in enumerate(puts) if owner == tenant]
        left, room = [], 4000
        for name, size in reversed(mine):
            room -= size
            if room < 0:
                break
            left.append(name)
        assert [name for name, _ in reversed(mine) if memory.get(tenant, name)] == left


def test_what_is_too_large_is_not_kept_and_drives_nobody_out():
    memory = Memory(lambda: 1000, 60.0)
    memory.put("ann", "small", turns(500))
    call = ToolCall(id="1", name="f", arguments="x" * 1000)
    memory.put("ann", "large", (Message(role="assistant", reasoning="hm", tool_calls=(call,)),))
    assert memory.get("ann", "large") is None
    assert memory.get("ann", "small") is not None


def test_a_limit_of_nothing_keeps_nothing():
    memory = Memory(lambda: 0, 60.0)
    memory.put("ann", "1", turns(OVERHEAD))
    assert memory.get("ann", "1") is None
