"""An engine process without a model: speaks the wire protocol and has a token for everybody in each step.

What a client then waits for is the text side alone: HTTP, template, tokenizer, service, transport and the stream.
Started in place of `python -m stoker.engine`, with the same specification on standard input. `--pace SECONDS` is the
time from one step to the next; without it they come as fast as they are taken.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import msgspec
import zmq

from stoker.engine.spec import EngineSpec
from stoker.types.wire import (
    Abort,
    EngineStats,
    FromEngine,
    Generate,
    Hello,
    Progress,
    Ready,
    SampledToken,
    Shutdown,
    Step,
    ToEngine,
)

CONTEXT = 1 << 20
TOKENS = range(340, 400)  # of the demo's vocabulary: text, each by itself
HEARTBEAT_SECONDS = 0.5
READY = Ready(context=CONTEXT, kv_tokens=CONTEXT, block_size=16, dtype="none", device="none", load_seconds=0.0)


class Requests:
    """What is being generated, for whom and how far: (client, request id) -> (tokens made, tokens asked for)."""

    def __init__(self) -> None:
        self.open: dict[tuple[bytes, str], tuple[int, int]] = {}

    def step(self) -> dict[bytes, Step]:
        """One token for each request; the last one finishes it."""
        news: dict[bytes, list[Progress]] = {}
        for (client, name), (made, asked) in list(self.open.items()):
            token = SampledToken(TOKENS[made % len(TOKENS)])
            finish = "length" if made + 1 == asked else None
            news.setdefault(client, []).append(Progress(id=name, tokens=[token], output=made + 1, finish=finish))
            if finish is None:
                self.open[client, name] = made + 1, asked
            else:
                del self.open[client, name]
        return {client: Step(progress=progress) for client, progress in news.items()}


def stats(steps: int) -> EngineStats:
    names = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    return msgspec.convert({**names, "type": "stats", "steps": steps}, EngineStats)


def serve(socket: zmq.Socket[bytes], pace: float) -> None:
    """Answer until told to shut down or the parent is gone."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    encoder = msgspec.msgpack.Encoder()
    clients: set[bytes] = set()
    requests = Requests()
    parent = os.getppid()
    beaten = due = 0.0
    steps = 0

    def send(name: bytes, message: FromEngine) -> None:
        socket.send_multipart((name, encoder.encode(message)))

    while os.getppid() == parent:
        now = time.monotonic()
        if socket.poll(round(1000 * (max(0.0, due - now) if requests.open else HEARTBEAT_SECONDS))):
            name, body = socket.recv_multipart()
            match decoder.decode(body):
                case Hello() if name not in clients:
                    clients.add(name)
                    send(name, READY)
                case Generate() as request:
                    requests.open[name, request.id] = 0, request.sampling.max_tokens or 1
                case Abort(id=request_id):
                    requests.open.pop((name, request_id), None)
                case Shutdown():
                    return
                case _:
                    pass
        now = time.monotonic()
        if requests.open and now >= due:
            due = max(due + pace, now)
            for name, step in requests.step().items():
                send(name, step)
            steps += 1
        if now - beaten >= HEARTBEAT_SECONDS:
            beaten = now
            for name in clients:
                send(name, stats(steps))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fake_engine")
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSpec)
    context = zmq.Context()
    with context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # wait for a slow reader instead of dropping its tokens
        socket.bind(spec.endpoint)
        serve(socket, options.pace)


if __name__ == "__main__":
    main()
