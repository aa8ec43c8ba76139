"""What `stoker serve` shows while it starts: progress, then the ready panel. Errors as one line on stderr.

On a terminal a live line; elsewhere (a file, a service manager, JSON logs) one log line per stage.
"""

from __future__ import annotations

import logging
import time

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stoker.config import Config
from stoker.fleet.backend import Down, Starting, State
from stoker.types.wire import Ready

log = logging.getLogger(__name__)


class Screen:
    """Follows the start of one server and says when it is ready."""

    def __init__(self, config: Config, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._config = config
        self._live = self.console.is_terminal and config.log_format == "text"
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._started = time.monotonic()
        self._port: int | None = None
        self._ready: Ready | None = None
        self._shown = False
        self._model = config.model

    def progress(self, stage: str, fraction: float) -> None:
        """`fraction` 0..1 of `stage`."""
        if not self._live:
            if stage != self._stage:
                log.info("%s", stage, extra={"action": "starting"})
        else:
            if self._progress is None or self._task is None:
                self._progress = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    TimeElapsedColumn(),
                    console=self.console,
                    transient=True,
                )
                self._progress.start()
                self._task = self._progress.add_task(stage, total=1.0)
            self._progress.update(self._task, description=stage, completed=fraction)
        self._stage = stage

    def named(self, model: str) -> None:
        """The name that clients use for the model."""
        self._model = model

    def listening(self, port: int) -> None:
        self._port = port
        self._show_when_ready()

    def state(self, state: State) -> None:
        match state:
            case Starting():
                self.progress(state.stage, state.fraction)
            case Ready():
                self._ready = state
                self._show_when_ready()
            case Down():
                self.close()

    def close(self) -> None:
        """End the live line, if any."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def _show_when_ready(self) -> None:
        if self._port is None or self._ready is None or self._shown:
            return  # `_shown`: a restarted engine is the supervisor's news, not a new start
        self._shown = True
        self.close()
        gateway, ready = self._config.gateway, self._ready
        scheme = "https" if gateway.tls_cert else "http"
        host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
        url = f"{scheme}://{host}:{self._port}"
        seconds = time.monotonic() - self._started
        if self._config.log_format == "json":
            extra = {"action": "ready", "url": url, "model": self._model, "seconds": round(seconds, 2)}
            log.info("ready: %s serves %s after %.1f s", url, self._model, seconds, extra=extra)
            return
        auth = ' -H "Authorization: Bearer $STOKER_API_KEY"' if self._config.tenants else ""
        key = 'os.environ["STOKER_API_KEY"]' if self._config.tenants else '"none"'
        self.console.print(
            Panel.fit(
                f"[bold green]Ready[/] after {seconds:.1f} s · [bold]{self._model}[/] on {ready.device} in "
                f"{ready.dtype} · context {ready.context:,} · KV cache {ready.kv_tokens:,} tokens\n\n"
                f"[bold]{url}/v1[/]   (Ctrl-C stops)",
                title="Stoker",
            )
        )
        body = f'{{"model": "{self._model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        # Printed outside of the panel and unwrapped, so that it can be copied.
        self.console.print(
            f"curl {url}/v1/chat/completions{auth} -H 'Content-Type: application/json' \\\n  -d '{body}'\n\n"
            f"from openai import OpenAI\n"
            f'client = OpenAI(base_url="{url}/v1", api_key={key})\n'
            f'reply = client.chat.completions.create(model="{self._model}", '
            f'messages=[{{"role": "user", "content": "Hello!"}}])\n'
            f"print(reply.choices[0].message.content)\n",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
