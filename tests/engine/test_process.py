"""The engine's loop over a real socket, with a scripted core in place of a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
import zmq

from stoker.config import EngineConfig
from stoker.engine import process
from stoker.engine.blocks import BlockPool
from stoker.engine.journal import Journal
from stoker.engine.process import EngineProcess
from stoker.engine.spec import EngineSpec
from stoker.models.info import ModelInfo
from stoker.models.source import ModelFiles
from stoker.types.sampling import SamplingParams
from stoker.types.wire import (
    Abort,
    EngineStats,
    FromEngine,
    Generate,
    Hello,
    ImagePixels,
    ImagesWanted,
    KVEvents,
    KVSnapshot,
    Loading,
    Progress,
    Ready,
    Refused,
    SampledToken,
    Shutdown,
    Step,
    Subscribe,
    ToEngine,
)

READY = Ready(context=64, kv_tokens=256, block_size=16, dtype="float32", device="cpu", load_seconds=0.1)
STATS = msgspec.convert(
    dict.fromkeys(EngineStats.__struct_fields__, 0) | {"waiting_by_lane": (0, 0, 0), "type": "stats"}, EngineStats
)


class ScriptedCore:
    """One token a step for each request until it has made as many as its prompt has; errors on demand."""

    ready = READY

    def __init__(self) -> None:
        self.left: dict[tuple[bytes, str], int] = {}
        self.dropped: list[int] = []
        self.unasked: dict[bytes, list[bytes]] = {}
        self.supplied: list[tuple[bytes, bytes, bytes]] = []
        self.step_seconds = 0.001
        self.predicted = 0.0
        self.pool = BlockPool(64, 64)
        self.journal = Journal(self.pool)
        self.names = count()
        self.no_good: list[tuple[bytes, str]] = []

    @property
    def busy(self) -> bool:
        return bool(self.left)

    def submit(self, client: bytes, request: Generate) -> Refused | None:
        if not request.prompt_ids:
            return Refused(id=request.id, kind="invalid_request_error", code="empty", message="no prompt")
        if request.prompt_ids == [666]:
            raise RuntimeError("the core is broken")
        if request.grammar is not None:
            self.no_good.append((client, request.id))
            return None
        self.left[client, request.id] = len(request.prompt_ids)
        return None

    @property
    def compiling(self) -> bool:
        return bool(self.no_good)

    def compiled(self) -> list[tuple[bytes, Refused]]:
        found, self.no_good = self.no_good, []
        return [
            (client, Refused(id=name, kind="invalid_request_error", code="invalid_grammar", message="no good"))
            for client, name in found
        ]

    def abort(self, client: bytes, request_id: str) -> None:
        self.left.pop((client, request_id), None)

    def drop_client(self, client: bytes) -> int:
        mine = [key for key in self.left if key[0] == client]
        for key in mine:
            del self.left[key]
        self.dropped.append(len(mine))
        return len(mine)

    def plan(self) -> float:
        return self.predicted if self.left else 0.0

    def wanted(self) -> dict[bytes, list[bytes]]:
        found, self.unasked = self.unasked, {}
        return found

    def supply(self, client: bytes, digest: bytes, pixels: bytes) -> list[Refused]:
        self.supplied.append((client, digest, pixels))
        lost = [name for owner, name in self.left if owner == client and not pixels]
        for name in lost:
            self.abort(client, name)
        return [Refused(id=name, kind="internal_error", code="image_lost", message="lost") for name in lost]

    def step(self) -> dict[bytes, list[Progress]]:
        """Publishes a block for each token as well."""
        news: dict[bytes, list[Progress]] = {}
        for key in list(self.left):
            self.left[key] -= 1
            self.publish()
            finish = "length" if self.left[key] == 0 else None
            news.setdefault(key[0], []).append(Progress(id=key[1], tokens=[SampledToken(7)], finish=finish))
            if finish:
                del self.left[key]
        time.sleep(self.step_seconds)
        return news

    def publish(self) -> None:
        (block,) = self.pool.allocate(1) or []
        link = next(self.names).to_bytes(16)
        self.pool.publish(block, link, [1] * 64, (link,))
        self.pool.release([block])

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(STATS, kv_seq=self.journal.seq, predicted=self.plan())


class Engine:
    """An `EngineProcess` in a thread, and sockets to talk to it."""

    def __init__(self, folder: Path, *, loads: bool = True) -> None:
        self.core = ScriptedCore()
        self.error: Exception | None = None
        self.endpoint = f"ipc://{folder}/engine"
        self.context = zmq.Context()
        self.loading = threading.Event()
        if loads:
            self.loading.set()
        self.peers: list[Peer] = []
        spec = EngineSpec(
            files=ModelFiles(name="m", root=str(folder), gguf=None),
            info=ModelInfo(name="m", architecture="llama", context=64, vocab_size=100, eos_ids=(0,), fingerprint="ab"),
            config=EngineConfig(),
            endpoint=self.endpoint,
            chain_key="00" * 32,
        )
        self.process = EngineProcess(spec, self._build)  # pyright: ignore[reportArgumentType]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _build(self, spec: EngineSpec, progress: Callable[[str, float], None]) -> ScriptedCore:
        progress("reading", 0.5)
        while not self.loading.wait(0.01):
            progress("reading", 0.6)
        return self.core

    def _run(self) -> None:
        try:
            self.process.run()
        except Exception as error:
            self.error = error

    def connect(self) -> Peer:
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.endpoint)
        self.peers.append(Peer(socket))
        return self.peers[-1]

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        self.context.destroy(0)

    def join(self) -> None:
        self.thread.join(5.0)
        assert not self.thread.is_alive()


class Peer:
    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def send(self, message: ToEngine) -> None:
        self.socket.send(msgspec.msgpack.encode(message))

    def get(self, *kinds: type, within: float = 5.0) -> FromEngine:
        """The next message of one of `kinds`."""
        end = time.monotonic() + within
        while self.socket.poll(max(0.0, end - time.monotonic()) * 1000):
            message = msgspec.msgpack.decode(self.socket.recv(), type=FromEngine)
            if isinstance(message, kinds):
                return message
        raise AssertionError(f"no {[kind.__name__ for kind in kinds]} within {within} s")

    def tokens(self, request_id: str) -> int:
        """Read until `request_id` finishes; how many tokens it got."""
        count = 0
        while True:
            step = self.get(Step)
            assert isinstance(step, Step)
            for progress in step.progress:
                if progress.id == request_id:
                    count += len(progress.tokens)
                    if progress.finish:
                        return count


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(process, "HEARTBEAT_SECONDS", 0.05)
    running = Engine(tmp_path)
    yield running
    if running.thread.is_alive():
        running.connect().send(Shutdown())
        running.join()
    running.close()


def generate(request_id: str, tokens: int) -> Generate:
    return Generate(id=request_id, prompt_ids=[1] * tokens, sampling=SamplingParams())


def test_two_clients_get_their_own_tokens(engine: Engine) -> None:
    first, second = engine.connect(), engine.connect()
    for peer in (first, second):
        peer.send(Hello())
        peer.send(generate("same-id", 5 if peer is first else 9))
    assert first.get(Ready) == READY
    assert first.tokens("same-id") == 5
    assert second.tokens("same-id") == 9


def test_beats_while_idle(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    assert [peer.get(EngineStats) for _ in range(3)] == [STATS] * 3


def test_refusal_and_abort(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    peer.send(generate("empty", 0))
    refused = peer.get(Refused)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.code) == ("empty", "empty")
    peer.send(generate("long", 100_000))
    peer.get(Step)
    for request_id in ("long", "long", "unknown"):
        peer.send(Abort(id=request_id))
    peer.send(generate("next", 3))
    assert peer.tokens("next") == 3
    assert not engine.core.left


def test_pixels_are_asked_of_the_client_that_has_them(engine: Engine) -> None:
    """And come back to the core; a request whose image is lost is refused to its own client only."""
    first, second = engine.connect(), engine.connect()
    for peer in (first, second):
        peer.send(Hello())
        peer.send(generate("a", 100_000))
        peer.get(Step)
    owner = next(client for client, _ in engine.core.left)
    engine.core.unasked = {owner: [b"one", b"two"]}
    wanted = first.get(ImagesWanted)
    assert wanted == ImagesWanted(digests=[b"one", b"two"])
    first.send(ImagePixels(digest=b"one", pixels=b"123"))
    first.send(ImagePixels(digest=b"two", pixels=b""))
    refused = first.get(Refused)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.code) == ("a", "image_lost")
    assert engine.core.supplied == [(owner, b"one", b"123"), (owner, b"two", b"")]
    second.get(Step)


def test_garbage_is_dropped(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    for garbage in (b"", b"\xff\xfe", msgspec.msgpack.encode({"type": "unknown"}), b"\x81"):
        peer.socket.send(garbage)
    peer.socket.send_multipart([b"a", b"b", b"c"])
    peer.send(generate("fine", 2))
    assert peer.tokens("fine") == 2


def test_a_closed_client_is_forgotten(engine: Engine) -> None:
    peer, other = engine.connect(), engine.connect()
    other.send(Hello())
    peer.send(Hello())
    peer.send(generate("long", 100_000))
    peer.get(Step)
    peer.socket.close()
    deadline = time.monotonic() + 5.0
    while engine.core.left and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.core.dropped == [1]
    other.send(generate("other", 2))
    assert other.tokens("other") == 2


def test_a_silent_client_is_told_when_it_comes_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLIENT_SILENCE_SECONDS", 0.2)
    peer = engine.connect()
    peer.send(Hello())
    peer.get(Ready)
    peer.send(generate("long", 100_000))
    deadline = time.monotonic() + 5.0
    while not engine.core.dropped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.core.dropped == [1]
    peer.send(generate("unheard", 3))  # not greeted again yet: nobody would read its tokens
    peer.send(Hello())
    assert peer.get(Ready) == READY
    assert not engine.core.left


def test_a_step_longer_than_the_silence_allowed_forgets_nobody(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLIENT_SILENCE_SECONDS", 0.2)
    engine.core.step_seconds = 0.3
    peer = engine.connect()
    peer.send(Hello())
    peer.get(Ready)
    peer.send(generate("slow", 4))
    for _ in range(20):
        peer.send(Hello())
        time.sleep(0.05)
    assert peer.tokens("slow") == 4
    assert engine.core.dropped == []


def test_a_client_that_does_not_read_is_forgotten(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTBOX_MESSAGES", 50)
    peer = engine.connect()
    peer.send(Hello())
    peer.send(generate("flood", 10_000_000))
    deadline = time.monotonic() + 20.0
    while not engine.core.dropped and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.core.dropped == [1]


def test_while_loading(tmp_path: Path) -> None:
    engine = Engine(tmp_path, loads=False)
    peer = engine.connect()
    peer.send(Hello())
    assert isinstance(peer.get(Loading), Loading)
    peer.send(generate("early", 3))
    refused = peer.get(Refused)
    assert isinstance(refused, Refused)
    assert refused.code == "model_loading"
    peer.send(Shutdown())
    engine.join()
    assert engine.error is None
    engine.close()


def test_a_grammar_that_turns_out_to_be_no_good_is_refused_late(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    peer.get(Ready)
    peer.send(Generate(id="a", prompt_ids=[1], sampling=SamplingParams(), grammar="start: x"))
    refused = peer.get(Refused)
    assert isinstance(refused, Refused)
    assert (refused.id, refused.code) == ("a", "invalid_grammar")


def test_a_broken_core_ends_the_process_with_its_error(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    peer.send(Generate(id="x", prompt_ids=[666], sampling=SamplingParams()))
    engine.join()
    assert isinstance(engine.error, RuntimeError)


class Mirror:
    """What a subscriber knows: None until it was told."""

    def __init__(self) -> None:
        self.seq: int | None = None
        self.blocks: set[bytes] = set()

    def take(self, message: FromEngine) -> None:
        match message:
            case KVSnapshot():
                assert message.first
                assert not message.more
                self.seq, self.blocks = message.seq, set(parts(message.blocks))
            case KVEvents():
                assert self.seq is not None, "events before the snapshot"
                assert message.seq == self.seq + 1
                self.seq = message.seq
                self.blocks = (self.blocks - set(parts(message.removed))) | set(parts(message.stored))
            case _:
                pass


def parts(joined: bytes) -> list[bytes]:
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


def test_subscribers_see_what_is_cached_whenever_they_came(engine: Engine) -> None:
    mirrors: list[tuple[Peer, Mirror]] = []
    for round_ in range(3):
        peer = engine.connect()
        peer.send(Hello())
        peer.get(Ready)
        peer.send(Subscribe())
        mirrors.append((peer, Mirror()))
        peer.send(generate(str(round_), 100))
        for other, mirror in mirrors:
            while mirror.seq != 100 * (round_ + 1):
                mirror.take(other.get(KVSnapshot, KVEvents))
            assert mirror.blocks == set(engine.core.pool._index)
    assert mirrors[0][1].blocks != set(), "and some were evicted: 300 tokens made a block each, 64 fit"
    peer, mirror = mirrors[0]
    peer.send(Subscribe())
    again = peer.get(KVSnapshot, KVEvents)
    assert isinstance(again, KVSnapshot)
    assert (again.seq, set(parts(again.blocks))) == (300, mirror.blocks)


def test_who_did_not_subscribe_gets_no_events_and_nobody_keeps_books(engine: Engine) -> None:
    peer = engine.connect()
    peer.send(Hello())
    peer.send(generate("a", 5))
    assert peer.tokens("a") == 5
    assert not engine.core.pool.watchers
    peer.send(Subscribe())
    peer.get(KVSnapshot)
    assert engine.core.pool.watchers == [engine.core.journal]
    peer.socket.close()
    other = engine.connect()
    other.send(Hello())
    deadline = time.monotonic() + 5.0
    while engine.core.pool.watchers and time.monotonic() < deadline:
        other.send(generate("b", 1))
        assert other.tokens("b") == 1
    assert not engine.core.pool.watchers, "the last subscriber has gone"


def test_a_subscriber_that_lags_behind_loses_events_and_not_its_requests(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "KV_OUTBOX_MESSAGES", 20)
    engine.core.step_seconds = 0.0
    peer = engine.connect()
    peer.send(Hello())
    peer.get(Ready)
    peer.send(Subscribe())
    peer.send(generate("long", 6000))  # far more messages than sockets hold
    deadline = time.monotonic() + 20.0
    while (engine.core.pool.watchers or not engine.core.journal.seq) and time.monotonic() < deadline:
        time.sleep(0.01)
    mirror, tokens, missed = Mirror(), 0, False
    while not missed:
        message = peer.get(KVSnapshot, KVEvents, Step, EngineStats)
        mirror.take(message)
        if isinstance(message, Step):
            tokens += len(message.progress)
        if isinstance(message, EngineStats) and mirror.seq is not None:
            missed = message.kv_seq != mirror.seq
    peer.send(Subscribe())
    while not isinstance(message, KVSnapshot):
        message = peer.get(KVSnapshot, Step)
        tokens += len(message.progress) if isinstance(message, Step) else 0
    mirror.take(message)
    while tokens < 6000 or not (isinstance(message, EngineStats) and message.kv_seq == mirror.seq):
        message = peer.get(KVEvents, Step, EngineStats)
        mirror.take(message)
        tokens += len(message.progress) if isinstance(message, Step) else 0
    assert mirror.blocks == set(engine.core.pool._index)
    assert engine.core.dropped == []


def test_a_long_step_is_announced_before_it_begins(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "HEARTBEAT_SECONDS", 600.0)  # it is a timeout of the socket too
    engine.core.predicted = 2.5
    peer = engine.connect()
    peer.send(Hello())
    peer.send(generate("a", 2))
    peer.get(Ready)
    for _ in range(2):
        stats = peer.get(EngineStats, Step)
        assert isinstance(stats, EngineStats)
        assert stats.predicted == 2.5
        assert isinstance(peer.get(EngineStats, Step), Step)
