"""The router over many requests: skew, spreading, churn, restarts, admission. The fleet is that of bench.routing."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.routing.cache import Cache
from bench.routing.opponents import RATE, SLOTS
from bench.routing.product import Product
from bench.routing.simulation import Clock, Outcome, Simulation
from bench.routing.traces import Arrivals, Call
from stoker.fleet.router import Denial, IndexState, NoReplica, Reason, ReplicaInfo, Router, RouterConfig, RouteRequest
from stoker.types.wire import EngineStats, KVEvents, KVSnapshot


def simulate(arrivals: Arrivals, replicas: int, capacity: int = 1_000_000) -> tuple[Outcome, Router, list[float]]:
    clock = Clock()
    product = Product(replicas, capacity, arrivals.tokens, RouterConfig(), clock)
    run = Simulation([Cache(capacity, arrivals.tokens) for _ in range(replicas)], product, clock, tell=True)
    outcome = run.open(arrivals, 1.0)
    return outcome, product.router, [replica.busy for replica in run.replicas]


def stream(count: int, every: float, make: Callable[[int, random.Random], tuple[list[int], int]]) -> Arrivals:
    """`make(number, draw)` gives the lengths of a prompt's own segments, after segment 0 (6,400 tokens), and the
    answer's; numbers below 0 leave the common segment out."""
    draw = random.Random(5)
    tokens, calls = [6400], list[tuple[float, str, Call]]()
    now = 0.0
    for number in range(count):
        now += draw.expovariate(1 / every)
        own, output = make(number, draw)
        path = [0] if own[0] >= 0 else []
        for length in own:
            path.append(len(tokens))
            tokens.append(abs(length))
        total = sum(tokens[s] for s in path)
        calls.append((now, str(number), Call(tuple(path), total, output)))
    return Arrivals("made", calls, tokens)


def test_prompts_that_no_cache_knows_are_spread_evenly() -> None:
    """A cold or a small cache must not draw everything, nor a full one keep everything."""
    arrivals = stream(1500, 0.15, lambda _, draw: ([-64 * draw.randrange(20, 400)], draw.randrange(10, 50)))
    outcome, router, busy = simulate(arrivals, 8, 200_000)
    assert outcome.busy > 0.5
    assert max(busy) < 1.15 * sum(busy) / len(busy)
    assert all(replica.load.started - replica.load.ended == 0 for replica in router.replicas.values())


def test_a_hot_prefix_spreads() -> None:
    """All requests share a prefix, at ten times what one replica can carry: each holds a slot for 4 s."""
    one = SLOTS / 4.0
    arrivals = stream(5000, 1 / (10 * one), lambda _, draw: ([64 * draw.randrange(1, 4)], 100))
    outcome, router, _ = simulate(arrivals, 16)
    started = [replica.load.started for replica in router.replicas.values()]
    assert max(started) < 1.5 * 5000 / 16
    assert outcome.p99 < 2.0
    assert outcome.hit > 0.9


def test_long_prompts_weigh_more_than_many_short_ones() -> None:
    arrivals = stream(600, 0.1, lambda n, _: ([-64 * (600 if n % 6 == 0 else 8)], 20))
    outcome, _, busy = simulate(arrivals, 8)
    assert max(busy) < 1.2 * sum(busy) / len(busy)
    assert outcome.busy > 0.6
    assert outcome.p50 < 0.5  # most of the short ones do not queue behind a long one, which takes 3.2 s


def info(name: str, **changes: object) -> ReplicaInfo:
    values = {"name": name, "capacity_tokens": 64_000, "prefill_rate": RATE, "step_seconds": 0.01}
    return ReplicaInfo(**{**values, **changes})  # type: ignore[arg-type]


def links(session: int, count: int) -> list[bytes]:
    return [(session + 1 << 64 | at).to_bytes(16) for at in range(count)]


def ask(name: str, session: int, length: int = 50) -> RouteRequest:
    blocks = links(session, length)
    return RouteRequest(id=name, tenant="t", session=str(session), blocks=blocks, tokens=length * 64 + 1)


def stats(in_use: int, **changes: object) -> EngineStats:
    zeros = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    return EngineStats(**{**zeros, "blocks_in_use": in_use, "blocks_free": 100 - in_use, **changes})  # type: ignore[arg-type]


def test_a_pool_that_is_nearly_full_of_running_sequences_is_avoided() -> None:
    """Counts alone do not see it: few long sequences fill the room of many."""
    router = Router(clock=Clock())
    for name in ("full", "free"):
        router.add(info(name))
    router.stats("full", stats(96))
    router.stats("free", stats(10))
    assert {router.route(ask(str(n), n)).replica for n in range(20)} == {"free"}


def test_a_replica_that_lost_events_without_a_sign_is_found_by_its_heartbeat() -> None:
    router = Router(clock=Clock())
    router.add(info("a"))
    assert router.state("a") is IndexState.ABSENT
    assert router.stats("a", stats(1, kv_seq=7))  # it sends none to us: nothing was lost
    router.snapshot("a", KVSnapshot(seq=7, blocks=b"", first=True))
    assert router.stats("a", stats(1, kv_seq=7))
    assert not router.stats("a", stats(1, kv_seq=8))
    assert router.state("a") is IndexState.DEGRADED


def test_what_the_engine_reports_replaces_what_was_believed() -> None:
    router = Router(clock=Clock())
    router.add(info("a", prefill_rate=0.0))
    router.stats("a", stats(0, prefill_rate=500.0, decode_seconds=0.2, kv_tokens=640))
    replica = router.replicas["a"]
    assert (replica.load.rate, replica.load.step, replica.view.capacity) == (500.0, 0.2, 10)


def test_after_a_restart_of_the_router_the_first_turns_hit_again() -> None:
    """A snapshot comes in parts, and requests are routed meanwhile."""
    before = Router(clock=Clock())
    names = [f"m/{n}" for n in range(4)]
    for name in names:
        before.add(info(name))
    homes = {}
    for session in range(40):
        decision = before.route(ask(f"a{session}", session))
        before.dispatch(ask(f"a{session}", session), decision)
        homes[session] = decision.replica
    after = Router(clock=Clock())
    for name in names:
        after.add(info(name))
        held = [link for session, home in homes.items() if home == name for link in links(session, 50)]
        random.Random(1).shuffle(held)
        parts = [held[at : at + 100] for at in range(0, len(held), 100)]
        for at, part in enumerate(parts):
            joined = b"".join(part)
            after.snapshot(name, KVSnapshot(seq=3, blocks=joined, first=at == 0, more=at + 1 < len(parts)))
            assert after.route(ask("while", 99)).replica in names
    for session, home in homes.items():
        decision = after.route(ask(f"b{session}", session, 60))
        assert (decision.replica, decision.matched) == (home, 50 * 64)
        after.dispatch(ask(f"b{session}", session, 60), decision)


class Engine:
    """A cache that stores and evicts at random, and a line to the router on which messages may be lost."""

    def __init__(self, router: Router, draw: random.Random) -> None:
        self.router, self.draw, self.seq = router, draw, 0
        self.held: OrderedDict[bytes, None] = OrderedDict()

    def change(self, lost: bool, storm: bool) -> None:
        stored = [link for link in links(self.draw.randrange(30), self.draw.randrange(1, 20)) if link not in self.held]
        self.held.update(dict.fromkeys(stored))
        gone = [self.held.popitem()[0] for _ in range(len(self.held) if storm else max(len(self.held) - 60, 0))]
        kept, removed = [x for x in stored if x not in gone], [x for x in gone if x not in stored]
        self.seq += 1
        news = KVEvents(seq=self.seq, stored=b"".join(kept), removed=b"".join(removed))
        if not lost and not self.router.events("a", news):
            self.subscribe()

    def subscribe(self) -> None:
        self.router.snapshot("a", KVSnapshot(seq=self.seq, blocks=b"".join(self.held), first=True))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60), st.integers(0, 99))
@settings(deadline=None)
def test_the_view_converges_under_churn_and_loss(history: list[tuple[bool, bool]], seed: int) -> None:
    router = Router(clock=Clock())
    router.add(info("a"))
    engine = Engine(router, random.Random(seed))
    engine.subscribe()
    for lost, storm in history:
        engine.change(lost, storm)
        if router.state("a") is IndexState.EXACT and not lost:
            assert {link for link, mask in router.index.holders.items() if mask} == set(engine.held)
    engine.change(False, False)
    assert router.state("a") is IndexState.EXACT
    assert set(router.index.holders) == set(engine.held)
    assert not router.replicas["a"].view.check()


def test_what_was_refused_by_an_engine_is_not_believed_to_be_there() -> None:
    router = Router(clock=Clock())
    router.add(info("a"))
    router.snapshot("a", KVSnapshot(seq=0, blocks=b"", first=True))
    first, second = ask("first", 0), ask("second", 0, 60)
    router.dispatch(first, router.route(first))
    router.dispatch(second, router.route(second))
    router.finished("first")  # refused, or its client left; the second will compute it
    assert router.route(ask("x", 0)).matched > 0
    router.events("a", KVEvents(seq=1, stored=b"".join(links(0, 10))))  # so much was done when the second ended too
    router.finished("second")
    assert router.route(ask("y", 0)).matched == 10 * 64
    assert not router.replicas["a"].view.check()


def test_near_the_cliff_new_sessions_are_refused_and_known_ones_served() -> None:
    clock = Clock()
    router = Router(RouterConfig(admit_wait=5.0, live=100.0), clock)
    for name in ("a", "b"):
        router.add(info(name, prefill_rate=1000.0))
    for session in range(39):  # 62 s of work on each, and 3,201 tokens of context in each session
        router.dispatch(ask(f"a{session}", session), router.route(ask(f"a{session}", session)))
    with pytest.raises(NoReplica) as caught:
        router.route(ask("new", 99))
    assert caught.value.denial is Denial.WORKING_SET
    assert router.route(ask("small", 99, 20)).replica in ("a", "b")  # a long wait, but there is room
    assert router.route(ask("b1", 1, 51)).replica in ("a", "b")
    assert router.route(RouteRequest(id="one-shot", tenant="t", tokens=100)).replica in ("a", "b")
    clock.now = 101.0  # nobody is live any more, or waits
    for session in range(39):
        router.finished(f"a{session}")
    assert router.route(ask("new", 99)).reason in (Reason.TIE, Reason.LOAD)
