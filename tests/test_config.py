"""One tree, its file, its flags, and what is wrong in them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from stoker.config import (
    Config,
    ConfigError,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    ImagesConfig,
    ModelConfig,
    Tenant,
    load,
)

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
    (model,) = config.models
    assert (model.model, config.gateway.port, config.gateway.host) == ("ORG/NAME", 9001, "127.0.0.1")
    assert model.engine.max_running == 8
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
        ("models = []", "'models' is empty"),
        ("model = 'x'\n[[models]]\nname = 'a'", "'model' is beside [[models]]"),
        ("[[models]]\nmodle = 'x'", "$.models[0]"),
        ("[[models]]\nname = 'a'\n[[models]]\nname = 'b'\n[models.engine]\nthreads = 0", "$.models[1].engine.threads"),
        ("[[models]]\nname = 'a b'", "$.models[0].name"),
        ("[[models]]\nname = 'a'\n[[models]]\nmodel = 'x'", "models[1] needs a name"),
        ("[[models]]\nname = 'a'\n[[models]]\nname = 'b'\naliases = ['a']", "'a' of models[1] is one of models[0]"),
        ("[[models]]\nname = 'a'\naliases = ['b', 'b']", "'b' of models[0] is one of models[0]"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(file, {})


TWO = """
[engine]
threads = 4
max_running = 8

[[models]]
name = "small"

[[models]]
name = "large"
model = "ORG/LARGE"
aliases = ["big"]
[models.engine]
threads = 2
"""


def test_several_models_share_what_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text(TWO, encoding="utf-8")
    small, large = load(file, {"engine.context": 100}).models
    assert (small.name, small.model, large.model, large.aliases) == ("small", "demo", "ORG/LARGE", ("big",))
    assert (small.engine.threads, small.engine.max_running, small.engine.context) == (4, 8, 100)
    assert (large.engine.threads, large.engine.max_running, large.engine.context) == (2, 8, 100)
    assert load(file, {"engine.threads": 1}).models[1].engine.threads == 1
    with pytest.raises(ConfigError, match=r"--name is for a single model, but .*stoker\.toml has 2"):
        load(file, {"name": "x"})


def test_flags_are_the_shorthand_of_one_model(tmp_path: Path) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text('[[models]]\nname = "small"\naliases = ["s"]', encoding="utf-8")
    (model,) = load(file, {"model": "x", "name": "y"}).models
    assert model == ModelConfig(model="x", name="y", aliases=("s",))
    assert load(None, {"model": "x", "name": "y", "revision": "1"}).models == (
        ModelConfig(model="x", name="y", revision="1"),
    )


def test_the_example_in_the_documentation_loads_and_shows_every_setting(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    file = tmp_path / "stoker.toml"
    file.write_text(example, encoding="utf-8")
    assert len(load(file, {}).models) > 1
    tree = tomllib.loads(example)
    tables = {
        "": (Config, [tree]),
        "gateway": (GatewayConfig, [tree["gateway"]]),
        "fleet": (FleetConfig, [tree["fleet"]]),
        "images": (ImagesConfig, [tree["images"]]),
        "models": (ModelConfig, tree["models"]),
        "engine": (EngineConfig, [tree["engine"], *(model.get("engine", {}) for model in tree["models"])]),
        "tenants": (Tenant, tree["tenants"]),
    }
    for table, (kind, said) in tables.items():
        missing = set(kind.__struct_fields__) - {key for entry in said for key in entry}
        commented = {key for key in missing if re.search(rf"^# {key} = ", example, flags=re.MULTILINE)}
        assert missing == commented, f"the example says nothing of {sorted(missing - commented)} in [{table}]"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        load(tmp_path / "nothing.toml", {})


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Config().data_path == tmp_path / "stoker"
    assert Config(data_dir="here").data_path == Path("here")
