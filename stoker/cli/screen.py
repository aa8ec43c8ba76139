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
        self._stages: dict[str, str] = {}  # the last one said, by who said it
        self._started = time.monotonic()
        self._port: int | None = None
        self._ready: dict[str, Ready] = {}
        self._shown = False

    def progress(self, stage: str, fraction: float, model: str | None = None) -> None:
        """`fraction` 0..1 of `stage`, of one `model` where there are several."""
        news = self._stages.get(model or "") != stage
        self._stages[model or ""] = stage
        stage = stage if model is None else f"{model}: {stage}"
        if not self._live:
            if news:
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

    def listening(self, port: int) -> None:
        self._port = port
        self._show_when_ready()

    def state(self, model: str, state: State) -> None:
        """News of the model that clients call `model`."""
        match state:
            case Starting():
                self.progress(state.stage, state.fraction, model if len(self._config.models) > 1 else None)
            case Ready():
                self._ready[model] = state
                self._show_when_ready()
            case Down():
                self.close()

    def close(self) -> None:
        """End the live line, if any."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def _show_when_ready(self) -> None:
        if self._port is None or len(self._ready) < len(self._config.models) or self._shown:
            return  # `_shown`: a restarted engine is the supervisor's news, not a new start
        self._shown = True
        self.close()
        gateway = self._config.gateway
        names = ", ".join(self._ready)
        first = next(iter(self._ready))
        scheme = "https" if gateway.tls_cert else "http"
        host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
        url = f"{scheme}://{host}:{self._port}"
        seconds = time.monotonic() - self._started
        if self._config.log_format == "json":
            extra = {"action": "ready", "url": url, "models": names, "seconds": round(seconds, 2)}
            log.info("ready: %s serves %s after %.1f s", url, names, seconds, extra=extra)
            return
        auth = ' -H "Authorization: Bearer $STOKER_API_KEY"' if self._config.tenants else ""
        key = 'os.environ["STOKER_API_KEY"]' if self._config.tenants else '"none"'
        models = [
            f"[bold]{model}[/] on {ready.device} in {ready.dtype} · context {ready.context:,} · "
            f"KV cache {ready.kv_tokens:,} tokens"
            for model, ready in self._ready.items()
        ]
        head = f"[bold green]Ready[/] after {seconds:.1f} s"
        told = f"{head} · {models[0]}" if len(models) == 1 else "\n".join((head, *models))
        self.console.print(Panel.fit(f"{told}\n\n[bold]{url}/v1[/]   (Ctrl-C stops)", title="Stoker"))
        body = f'{{"model": "{first}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        # Printed outside of the panel and unwrapped, so that it can be copied.
        self.console.print(
            f"curl {url}/v1/chat/completions{auth} -H 'Content-Type: application/json' \\\n  -d '{body}'\n\n"
            f"from openai import OpenAI\n"
            f'client = OpenAI(base_url="{url}/v1", api_key={key})\n'
            f'reply = client.chat.completions.create(model="{first}", '
            f'messages=[{{"role": "user", "content": "Hello!"}}])\n'
            f"print(reply.choices[0].message.content)\n",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
