"""From flags and environment to a configuration, and what a person sees while the server starts."""

from __future__ import annotations

import io
import logging
from hashlib import sha256

import pytest
from rich.console import Console

from stoker.cli.screen import Screen
from stoker.cli.serve import keys_from_environment, parse_bytes
from stoker.config import Config, ConfigError, ModelConfig
from stoker.fleet.backend import Down, Starting
from stoker.types.wire import Ready

READY = Ready(context=8192, kv_tokens=29120, block_size=16, dtype="bfloat16", device="cpu", load_seconds=1.0)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1048576", 1 << 20), ("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("500M", 500_000_000), ("10kb", 10_000)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "many", "2 TiBs", "-1G", "1e9", "0x10", "1iB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size"):
        parse_bytes(text)


def test_keys_are_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_API_KEYS", "alice=sk-1, bob=sk=2")
    assert keys_from_environment() == [
        {"name": "alice", "key_sha256": sha256(b"sk-1").hexdigest()},
        {"name": "bob", "key_sha256": sha256(b"sk=2").hexdigest()},
    ]
    monkeypatch.setenv("STOKER_API_KEYS", "alice=sk-1,secret-without-a-name")
    with pytest.raises(ConfigError, match="entry 2") as caught:
        keys_from_environment()
    assert "secret" not in str(caught.value)
    monkeypatch.delenv("STOKER_API_KEYS")
    assert keys_from_environment() is None


def shown(screen: Screen) -> str:
    console = screen.console
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_a_person_sees(caplog: pytest.LogCaptureFixture) -> None:
    screen = Screen(Config(), Console(file=io.StringIO(), width=100))
    with caplog.at_level(logging.INFO):
        for fraction in (0.1, 0.5, 0.9):
            screen.state("tiny", Starting(stage="loading weights", fraction=fraction))
    assert caplog.messages == ["loading weights"]
    screen.listening(8123)
    assert shown(screen) == ""
    screen.state("tiny", READY)
    text = shown(screen)
    assert "Ready" in text
    assert "curl http://127.0.0.1:8123/v1/chat/completions -H 'Content-Type: application/json'" in text
    assert 'OpenAI(base_url="http://127.0.0.1:8123/v1", api_key="none")' in text
    assert '"model": "tiny"' in text
    screen.state("tiny", Down(reason="crashed"))
    screen.state("tiny", READY)
    assert shown(screen) == text, "a restart is no new start"


def test_several_models_are_told_apart_and_all_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(models=(ModelConfig(name="small"), ModelConfig(name="large")))
    screen = Screen(config, Console(file=io.StringIO(), width=100))
    with caplog.at_level(logging.INFO):
        for fraction in (0.1, 0.5):
            for model in ("small", "large"):
                screen.state(model, Starting(stage="loading weights", fraction=fraction))
    assert caplog.messages == ["small: loading weights", "large: loading weights"]
    screen.listening(8123)
    screen.state("large", READY)
    assert shown(screen) == ""
    screen.state("small", READY)
    text = shown(screen)
    assert "small on cpu" in text
    assert "large on cpu" in text


def test_json_logs_have_no_panel(caplog: pytest.LogCaptureFixture) -> None:
    screen = Screen(Config(log_format="json"), Console(file=io.StringIO()))
    with caplog.at_level(logging.INFO):
        screen.state("tiny", READY)
        screen.listening(1)
    assert shown(screen) == ""
    assert [record.__dict__["action"] for record in caplog.records] == ["ready"]
