"""Sessions' bindings: what is remembered, for how long, and the sum of what is live."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.fleet.routing.bindings import Bindings, Key

LIMIT, IDLE, LIVE = 6, 100.0, 30.0


class Twin(RuleBasedStateMachine):
    """Against a plain table of (replica, tokens, last use)."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings = Bindings(LIMIT, IDLE, LIVE)
        self.table: dict[Key, tuple[str, int, float]] = {}
        self.now = 0.0

    @rule(tenant=st.sampled_from("ab"), session=st.integers(0, 5), to=st.sampled_from("xyz"), tokens=st.integers(0, 99))
    def bind(self, tenant: str, session: int, to: str, tokens: int) -> None:
        key = (tenant, str(session))
        self.bindings.bind(key, to, tokens, self.now)
        before = self.table.pop(key, None)
        self.table[key] = (to, max(tokens, before[1] if before else 0), self.now)
        if len(self.table) > LIMIT:
            del self.table[next(iter(self.table))]

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table = {key: entry for key, entry in self.table.items() if entry[2] >= self.now - IDLE}

    @invariant()
    def same(self) -> None:
        for tenant in "ab":
            for session in range(6):
                key = (tenant, str(session))
                found, entry = self.bindings.get(key, self.now), self.table.get(key)
                assert (found and (found.replica, found.tokens)) == (entry and entry[:2])
        live = [entry for entry in self.table.values() if entry[2] >= self.now - LIVE]
        assert self.bindings.context("xy", self.now) == sum(tokens for to, tokens, _ in live if to != "z")
        assert len(self.bindings) == len(self.table)


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
