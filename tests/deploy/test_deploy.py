"""The files for operators: manifests that a cluster would take, settings that load, paths that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from stoker.cli.serve import serve
from stoker.config import load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = [
    pytest.param(path, document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
CONTAINERFILES = sorted(DEPLOY.glob("Containerfile*"))


@pytest.mark.parametrize(("path", "document"), MANIFESTS)
def test_a_cluster_takes_the_manifests(path: Path, document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.parametrize(("path", "document"), [p for p in MANIFESTS if "ConfigMap" in str(p.id)])
def test_settings_load(path: Path, document: dict[str, Any], tmp_path: Path) -> None:
    for name, text in document["data"].items():
        file = tmp_path / name
        file.write_text(text)
        config = load(file, {})
        assert config.gateway.host == "0.0.0.0"


@pytest.mark.parametrize(("path", "document"), [p for p in MANIFESTS if re.search("StatefulSet|Deployment", str(p.id))])
def test_pods_have_few_rights_and_time_to_stop(path: Path, document: dict[str, Any]) -> None:
    pod = document["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
        assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    kept = {mount["name"] for c in pod["containers"] for mount in c["volumeMounts"]}
    named = {v["name"] for v in pod["volumes"]} | {
        claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])
    }
    assert kept == named


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_images_copy_what_is_there_and_do_not_run_as_root(path: Path) -> None:
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    for words in lines:
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            assert all((ROOT / source).exists() for source in words[1:-1]), words
    assert ["USER", "10001"] in lines
    entry = next(" ".join(words[1:]) for words in lines if words[:1] == ["ENTRYPOINT"])
    flags = {flag.removeprefix("--").replace("-", "_") for flag in re.findall(r"--[a-z-]+", entry)}
    assert flags <= set(serve.__annotations__)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "stoker.service").read_text(encoding="utf-8")
    unit = tmp_path / "stoker.service"
    unit.write_text(text.replace("/opt/stoker/bin/stoker", "/bin/true"))  # it must exist
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert "stoker.service" not in done.stderr, done.stderr
