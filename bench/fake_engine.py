"""An engine process without a model: speaks the wire protocol and answers every request at once.

What a client then waits for is the text side alone: HTTP, template, tokenizer, service, transport and the stream.
Started in place of `python -m stoker.engine`, with the same specification on standard input.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec
import zmq

from stoker.engine.spec import EngineSpec
from stoker.types.wire import (
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
TOKEN = 284
HEARTBEAT_SECONDS = 0.5
READY = Ready(context=CONTEXT, kv_tokens=CONTEXT, block_size=16, dtype="none", device="none", load_seconds=0.0)


def answers(request: Generate) -> list[Step]:
    """One step for each token, as a real engine sends them; the last one finishes."""
    count = request.sampling.max_tokens or 1
    return [
        Step(
            progress=[
                Progress(
                    id=request.id,
                    tokens=[SampledToken(TOKEN)],
                    output=made,
                    finish="length" if made == count else None,
                )
            ]
        )
        for made in range(1, count + 1)
    ]


def stats(steps: int) -> EngineStats:
    names = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    return msgspec.convert({**names, "type": "stats", "steps": steps}, EngineStats)


def serve(socket: zmq.Socket[bytes]) -> None:
    """Answer until told to shut down or the parent is gone."""
    decoder = msgspec.msgpack.Decoder(ToEngine)
    encoder = msgspec.msgpack.Encoder()
    clients: set[bytes] = set()
    parent = os.getppid()
    beaten = 0.0
    steps = 0

    def send(name: bytes, message: FromEngine) -> None:
        socket.send_multipart((name, encoder.encode(message)))

    while os.getppid() == parent:
        if socket.poll(round(HEARTBEAT_SECONDS * 1000)):
            name, body = socket.recv_multipart()
            match decoder.decode(body):
                case Hello() if name not in clients:
                    clients.add(name)
                    send(name, READY)
                case Generate() as request:
                    for step in answers(request):
                        send(name, step)
                        steps += 1
                case Shutdown():
                    return
                case _:
                    pass
        if time.monotonic() - beaten >= HEARTBEAT_SECONDS:
            beaten = time.monotonic()
            for name in clients:
                send(name, stats(steps))


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSpec)
    context = zmq.Context()
    with context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # wait for a slow reader instead of dropping its tokens
        socket.bind(spec.endpoint)
        serve(socket)


if __name__ == "__main__":
    main()
