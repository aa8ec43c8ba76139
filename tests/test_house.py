"""The house rules that no linter knows: what the documents promise is what the tree holds."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    if name
]
TEXTS = {path: path.read_text(encoding="utf-8", errors="replace") for path in TRACKED if path.is_file()}

# Written in pieces, so that this file does not find itself.
FORBIDDEN = {
    "a path of somebody's machine": re.compile(
        "|".join([r"(?<![\w.-])/" + r"work/\w", "/ro" + "ot/", "/ho" + r"me/\w"])
    ),
    "the host of a package registry": re.compile(
        "|".join(
            ["pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(org|com)", "download" + r"\.pytorch\.org"]
        )
    ),
}


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it, without extras, version and marker."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[;<>=!~]", name.strip(), maxsplit=1)[0]).lower()


def project() -> dict[str, list[str]]:
    """The project's dependencies: "" those of the package itself, else those of an extra."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": table["dependencies"], **table["optional-dependencies"]}


def pins(name: str) -> dict[str, str]:
    """Lines of one requirements file: distribution -> version and marker."""
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith(("#", "-r"))]
    assert all("==" in line for line in wanted), "every requirement is pinned"
    return {normal(line): line.partition("==")[2].partition(";")[0] for line in wanted}


def test_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.relative_to(ROOT).as_posix() for path in TEXTS if path.match("stoker/**/__init__.py")}
    missing = sorted(name for name in packages - {"stoker"} if f"`{name.removeprefix('stoker/')}/`" not in page)
    assert not missing, f"docs/architecture.md says nothing of {missing}"


@pytest.mark.parametrize("extra", project())
def test_dependencies_are_explained(extra: str) -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = {normal(name) for name in re.findall(r"^\| `([^`]+)`", page, flags=re.MULTILINE)}
    missing = {normal(name) for name in project()[extra]} - explained
    assert not missing, f"docs/dependencies.md says nothing of {sorted(missing)}"


def test_explained_dependencies_exist() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = {normal(name) for name in re.findall(r"^\| `([^`]+)`", page, flags=re.MULTILINE)}
    declared = {normal(name) for names in project().values() for name in names}
    assert explained <= declared | set(pins("runtime.txt")) | set(pins("dev.txt")) | set(pins("demo.txt"))


def test_runtime_dependencies_are_pinned() -> None:
    missing = {normal(name) for name in project()[""]} - set(pins("runtime.txt"))
    assert not missing, f"requirements/runtime.txt does not pin {sorted(missing)}"


def test_no_dependency_is_pinned_twice() -> None:
    runtime, dev, demo = (set(pins(name)) for name in ("runtime.txt", "dev.txt", "demo.txt"))
    assert not runtime & dev
    assert not (runtime | dev) & demo


def test_the_build_uses_the_pinned_setuptools() -> None:
    """The Makefile builds without isolation, so the environment must have what pyproject.toml asks for."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert build == [f"setuptools=={pins('runtime.txt')['setuptools']}"]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_name_nothing_local(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path, text in TEXTS.items()
        for number, line in enumerate(text.splitlines(), 1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found, f"{what}: {found}"


def test_files_stay_short() -> None:
    """A long file has a second reason to change. Tests are not held to it: there it only costs reading."""
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for path, text in TEXTS.items()
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests") and (lines := text.count("\n")) >= 400
    }
    assert not long, f"400 lines or more: {long}"


def test_no_two_test_modules_have_one_name() -> None:
    """There are no packages in tests: of two modules with one name pytest would import only the first."""
    names = [path.name for path in TEXTS if path.is_relative_to(ROOT / "tests") and path.suffix == ".py"]
    twice = sorted({name for name in names if names.count(name) > 1} - {"conftest.py"})
    assert not twice, f"in several folders: {twice}"


def test_every_file_of_code_says_what_it_owns() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path, text in TEXTS.items()
        if path.suffix == ".py" and path.is_relative_to(ROOT / "stoker") and not text.lstrip().startswith('"""')
    ]
    assert not silent, f"no module docstring: {silent}"


def test_targets_of_the_contract_exist() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {line.split()[1] for line in listed.splitlines() if line.startswith("make ")}
    assert {"setup", "serve", "test", "lint", "bench", "clean"} <= names
