"""One tree, its file, its flags, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import Config, ConfigError, load

GOOD = """
model = "ORG/NAME"
log_format = "json"

[engine]
max_running = 8

[gateway]
port = 9000

[[tenants]]
name = "alice"
key_sha256 = "00"
"""


def test_defaults_listen_on_loopback_only() -> None:
    assert load(None, {}) == Config()
    assert Config().gateway.host == "127.0.0.1"


def test_flags_win_over_the_file_and_absent_flags_do_not(tmp_path: Path) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text(GOOD, encoding="utf-8")
    config = load(file, {"gateway.port": 9001, "gateway.host": None, "model": None})
    assert (config.model, config.gateway.port, config.gateway.host) == ("ORG/NAME", 9001, "127.0.0.1")
    assert config.engine.max_running == 8
    assert config.tenants[0].name == "alice"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = ", "stoker.toml"),
        ("modle = 'x'", "modle"),
        ("[gateway]\nport = 70000", "$.gateway.port"),
        ("[gateway]\nheartbeat = 0", "$.gateway.heartbeat"),
        ("[engine]\nmax_running = 0", "$.engine.max_running"),
        ("[engine]\nlane_reserve = [0.5, 0.0]", "$.engine.lane_reserve"),
        ("[engine]\ndtype = 'int8'", "$.engine.dtype"),
        ("[[tenants]]\nname = 'x'", "key_sha256"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said.replace("$", r"\$")):
        load(file, {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        load(tmp_path / "nothing.toml", {})


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Config().data_path == tmp_path / "stoker"
    assert Config(data_dir="here").data_path == Path("here")
