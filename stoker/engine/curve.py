"""Encryption and mutual authentication of a socket that leaves the host: CurveZMQ, one pair of keys for each side.

Owns how a ZeroMQ socket is given its keys. A Unix socket in a folder of mode 0700 needs none of this.
"""

from __future__ import annotations

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One side's keys, Z85 text: its own secret and public key, and the only public key that it talks to."""

    secret: str
    public: str
    peer: str


def curve_pair() -> tuple[Curve, Curve]:
    """Fresh keys for an engine and its clients."""
    (engine, engine_secret), (client, client_secret) = (
        (public.decode(), secret.decode()) for public, secret in (zmq.curve_keypair(), zmq.curve_keypair())
    )
    return (
        Curve(secret=engine_secret, public=engine, peer=client),
        Curve(secret=client_secret, public=client, peer=engine),
    )


def connect_with(socket: zmq.Socket[bytes], keys: Curve | None) -> None:
    """Before `connect`: talk only to the peer. Nothing for None."""
    if keys is not None:
        socket.curve_secretkey = keys.secret.encode()
        socket.curve_publickey = keys.public.encode()
        socket.curve_serverkey = keys.peer.encode()


def guard(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], keys: Curve | None) -> Guard:
    """Before `bind`: let only the peer in until the guard is closed. Nobody is kept out for None."""
    if keys is None:
        return Guard()
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_server = True
    return _PeerGuard(context, keys.peer)


class Guard:
    """Keeps nobody out."""

    def close(self) -> None:
        """To be called before the context ends."""


class _PeerGuard(Guard):
    """ZeroMQ asks it about each connection whose handshake has succeeded."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], peer: str) -> None:
        self._peer = peer.encode()
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator; `key` is Z85 text."""
        return key == self._peer

    def close(self) -> None:
        self._authenticator.stop()
