"""The server's end of the admin socket: DATA_DIR/admin.sock, for this user alone, one server at a time."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from pathlib import Path

from stoker.gateway.admin import ADMIN_CONFIG, AdminApp, AdminRoutes
from stoker.gateway.server import serve_unix

SOCKET = "admin.sock"
LOCK = "admin.lock"

log = logging.getLogger(__name__)


async def serve_admin(folder: Path, admin: AdminRoutes, stop: asyncio.Event) -> None:
    """Answer operators until `stop` is set. Where that cannot be, it is said and the server does without."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when this process ends, however it does
            await serve_unix(AdminApp(admin), ADMIN_CONFIG, folder / SOCKET, stop)
        except BlockingIOError:
            _without("another server uses this data folder, and its admin socket is that one's")
        except OSError as error:  # the path is too long for a socket, or the file system has none
            _without(f"no admin socket at {folder / SOCKET}: {error}")


def _without(reason: str) -> None:
    log.warning("%s; stoker drain, restart and reload reach this server with --admin-url", reason)
