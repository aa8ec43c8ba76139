"""The router as the pool uses it: who may take a request, who does, and whether the books are right afterwards."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.fleet.router import (
    Decision,
    Denial,
    IndexState,
    NoReplica,
    Reason,
    ReplicaInfo,
    Router,
    RouterConfig,
    RouteRequest,
)
from stoker.types.wire import KVEvents, KVSnapshot


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def info(name: str, **changes: object) -> ReplicaInfo:
    values = {"name": name, "capacity_tokens": 64_000, "prefill_rate": 1000.0, "step_seconds": 0.01, "slots": 8}
    return ReplicaInfo(**{**values, **changes})  # type: ignore[arg-type]


def fleet(count: int = 4, *, exact: bool = True, **config: object) -> tuple[Router, Clock]:
    clock = Clock()
    router = Router(RouterConfig(**config), clock)  # type: ignore[arg-type]
    for number in range(count):
        router.add(info(f"m/{number}"))
        if exact:
            router.snapshot(f"m/{number}", KVSnapshot(seq=0, blocks=b"", first=True))
    return router, clock


def blocks(session: int, count: int, common: int = 0) -> list[bytes]:
    """Links of a prompt of a session; the first `common` are the same for all sessions."""
    return [((0 if at < common else session + 1) << 64 | at).to_bytes(16) for at in range(count)]


def request(name: str, session: int = 0, length: int = 16, **changes: object) -> RouteRequest:
    values = {"id": name, "tenant": "t", "session": str(session), "tokens": length * 64 + 7}
    return RouteRequest(**{**values, "blocks": blocks(session, length), **changes})  # type: ignore[arg-type]


def serve(router: Router, ask: RouteRequest) -> Decision:
    """Routed, sent, begun and ended at once."""
    decision = router.route(ask)
    router.dispatch(ask, decision)
    router.begun(ask.id, decision.matched)
    router.finished(ask.id)
    return decision


def test_the_next_turn_goes_where_the_last_one_was() -> None:
    router, _ = fleet()
    homes = {session: serve(router, request(f"a{session}", session)).replica for session in range(20)}
    for session, home in homes.items():
        decision = serve(router, request(f"b{session}", session, 20))
        assert (decision.replica, decision.reason, decision.matched) == (home, Reason.PREFIX, 16 * 64)
        assert decision.bound == home
        assert decision.seconds == pytest.approx((20 * 64 + 7 - 16 * 64) / 1000)


def test_an_idle_fleet_is_used_evenly() -> None:
    """Equal scores go by the rendezvous order, not to the first in the list."""
    router, _ = fleet()
    homes = [serve(router, request(str(session), session)).replica for session in range(400)]
    assert all(60 < homes.count(f"m/{number}") < 140 for number in range(4))


def test_a_queue_is_counted_in_tokens_not_in_requests() -> None:
    router, _ = fleet(2)
    long = request("long", 0, 500)
    home = router.route(long)
    router.dispatch(long, home)
    for number in range(5):
        small = request(f"s{number}", 1 + number, 10)
        decision = router.route(small)
        assert decision.replica != home.replica
        router.dispatch(small, decision)


def test_a_pinned_request_never_leaves_its_zone() -> None:
    clock = Clock()
    router = Router(clock=clock)
    for name, zone in (("a", "eu"), ("b", "us"), ("c", "eu")):
        router.add(info(name, zone=zone))
    pinned = [request(str(session), session, zone="eu") for session in range(30)]
    assert {serve(router, ask).replica for ask in pinned} == {"a", "c"}
    assert router.route(pinned[0], frozenset({"a"})).replica == "c"
    with pytest.raises(NoReplica) as caught:
        router.route(pinned[0], frozenset({"a", "c"}))
    assert caught.value.denial is Denial.EXCLUDED
    with pytest.raises(NoReplica) as caught:
        router.route(request("x", zone="mars"))
    assert caught.value.denial is Denial.ZONE


def test_a_far_zone_costs_its_transfer() -> None:
    router = Router(RouterConfig(transfer={"far": 2.0}), Clock())
    router.add(info("near", zone="here"))
    router.add(info("far", zone="far"))
    first = request("a", 0, 100)
    decision = router.route(first)
    assert decision.replica == "near"
    router.dispatch(first, decision)
    assert router.route(request("b", 1, 10)).replica == "far"  # 6 s of queue there, 2 s of way here


def test_without_replicas_it_says_so() -> None:
    with pytest.raises(NoReplica, match="no replica"):
        Router().route(request("x"))


def test_a_draining_replica_takes_no_new_sessions() -> None:
    router, _ = fleet(2)
    home = serve(router, request("a", 0)).replica
    router.drain(home)
    others = {serve(router, request(f"n{session}", session)).replica for session in range(1, 20)}
    assert home not in others
    assert serve(router, request("b", 0, 20)).replica == home
    router.drain(next(iter(others)))
    with pytest.raises(NoReplica) as caught:
        router.route(request("new", 99))
    assert caught.value.denial is Denial.DRAINING
    router.drain(home, draining=False)
    assert router.route(request("new", 99)).replica == home


def test_a_session_whose_replica_is_away_goes_elsewhere_and_it_is_said() -> None:
    router, _ = fleet(3)
    home = serve(router, request("a", 0)).replica
    decision = router.route(request("b", 0, 20), frozenset({home}))
    assert decision.replica != home
    assert (decision.reason, decision.bound, decision.matched) == (Reason.AWAY, home, 0)
    router.remove(home)
    assert router.route(request("b", 0, 20)).reason is Reason.AWAY


def test_a_session_is_never_read_from_another_tenant() -> None:
    router, _ = fleet(8)
    serve(router, request("a", 0))
    assert router.route(request("b", 0, tenant="other", blocks=[])).bound is None


def test_a_client_cannot_name_a_replica() -> None:
    """Whatever it puts into its session, only the rendezvous order of all replicas decides."""
    router, _ = fleet(4)
    chosen = {
        router.route(RouteRequest(id=name, tenant="t", session=name, tokens=100)).replica
        for name in ("m/2", "m/2 ", "2", "replica=m/2", "http://127.0.0.1:1", *map(str, range(40)))
    }
    assert chosen <= set(router.replicas)
    assert len(chosen) == 4


def test_a_missed_event_degrades_and_a_snapshot_mends() -> None:
    router, _ = fleet(2)
    some, more = blocks(1, 4), blocks(2, 4)
    assert router.events("m/0", KVEvents(seq=1, stored=b"".join(some)))
    assert router.events("m/0", KVEvents(seq=1, stored=b"".join(more)))  # said twice, counted once
    assert router.index.depths(more, 3) == {}
    assert not router.events("m/0", KVEvents(seq=3, removed=b"".join(some)))
    assert router.state("m/0") is IndexState.DEGRADED
    assert not router.events("m/0", KVEvents(seq=4))
    router.snapshot("m/0", KVSnapshot(seq=4, blocks=b"".join(more[:2]), first=True, more=True))
    assert router.state("m/0") is IndexState.DEGRADED
    router.snapshot("m/0", KVSnapshot(seq=4, blocks=b"".join(more[2:])))
    assert router.state("m/0") is IndexState.EXACT
    assert router.index.depths(some, 3) == {}
    assert router.index.depths(more, 3) == {0: 4}
    assert router.events("m/0", KVEvents(seq=5, cleared=True))
    assert len(router.index) == 0


def test_half_a_snapshot_is_none() -> None:
    router, _ = fleet(1, exact=False)
    router.snapshot("m/0", KVSnapshot(seq=4, blocks=b"x" * 16))
    assert router.state("m/0") is IndexState.DEGRADED
    assert not router.events("m/0", KVEvents(seq=5))


def test_without_events_the_binding_decides() -> None:
    """A replica that tells nothing may have dropped what was sent to it, or kept an answer: the session stays."""
    router, _ = fleet(4, exact=False)
    home = serve(router, request("a", 0)).replica
    turn = request("b", 0, 16, blocks=blocks(77, 16))  # not one block of it is known
    decision = router.route(turn)
    assert (decision.replica, decision.reason) == (home, Reason.BOUND)
    busy = request("c", 5, 900)
    router.dispatch(busy, Decision(replica=home, reason=Reason.LOAD, matched=0, seconds=0.0))
    assert router.route(turn).reason is Reason.MOVED  # but not for a minute's wait


def test_events_of_unknown_replicas_are_harmless() -> None:
    router, _ = fleet(1)
    assert router.events("gone", KVEvents(seq=9))
    router.snapshot("gone", KVSnapshot(seq=9, blocks=b"", first=True))
    router.remove("gone")
    router.begun("nobody", 3)
    router.progressed("nobody", 3)
    router.finished("nobody")


def test_a_link_of_the_wrong_length_is_refused() -> None:
    router, _ = fleet(1)
    with pytest.raises(ValueError, match="15 bytes"):
        router.events("m/0", KVEvents(seq=1, stored=b"x" * 15))


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"'best'.*predicted_seconds"):
        Router(RouterConfig(policy="best"))


@pytest.mark.parametrize("policy", ["round_robin", "least_tokens", "affinity", "predicted_seconds"])
def test_every_policy_uses_all_and_only_those_that_may(policy: str) -> None:
    router, _ = fleet(4, policy=policy)
    chosen = [router.route(request(str(n), n), frozenset({"m/1"})) for n in range(1)]
    for number in range(60):
        ask = request(f"r{number}", number)
        decision = router.route(ask, frozenset({"m/1"}))
        router.dispatch(ask, decision)
        chosen.append(decision)
    assert {decision.replica for decision in chosen} == {"m/0", "m/2", "m/3"}


class Books(RuleBasedStateMachine):
    """started - finished = load, on every replica, after any history, with every report told any number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.clock = fleet(3)
        self.flying: dict[str, str] = {}
        self.count = 0
        self.gone = 3

    @rule(session=st.integers(0, 5), length=st.integers(0, 30))
    def send(self, session: int, length: int) -> None:
        self.count += 1
        ask = request(f"r{self.count}", session, length)
        try:
            decision = self.router.route(ask)
        except NoReplica:
            return
        self.router.dispatch(ask, decision)
        self.flying[ask.id] = decision.replica

    @rule(data=st.data(), what=st.sampled_from(["begun", "progressed", "finished"]))
    def report(self, data: st.DataObject, what: str) -> None:
        name = f"r{data.draw(st.integers(0, self.count))}"
        if what == "begun":
            self.router.begun(name, 64)
        elif what == "progressed":
            self.router.progressed(name, 3)
        else:
            self.router.finished(name)
            self.flying.pop(name, None)

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(number=st.integers(0, 4), drain=st.booleans())
    def lose(self, number: int, drain: bool) -> None:
        name = f"m/{number}"
        if drain and name in self.router.replicas:
            self.router.drain(name)
            return
        self.router.remove(name)
        self.flying = {ask: replica for ask, replica in self.flying.items() if replica != name}

    @rule(number=st.integers(0, 4))
    def come(self, number: int) -> None:
        if f"m/{number}" not in self.router.replicas:
            self.router.add(info(f"m/{number}"))

    @invariant()
    def balanced(self) -> None:
        for name, replica in self.router.replicas.items():
            load = replica.load
            here = [ask for ask, where in self.flying.items() if where == name]
            assert load.started - load.ended == load.inflight == len(here)
            assert set(load.flights) == set(here)
            if not here:
                assert (load.tokens, load.output, load.queued, load.queued_tokens) == (0, 0, 0, 0)
            assert not replica.view.check()

    def teardown(self) -> None:
        for name in list(self.flying):
            self.router.finished(name)
        self.flying.clear()
        self.balanced()


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
