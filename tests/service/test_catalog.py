from __future__ import annotations

import pytest
from front_fakes import INFO, FakeBackend, FakeText

from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.types.errors import ErrorKind, StokerError


def service(name: str) -> Service:
    return Service(FakeText(), INFO, FakeBackend(), name=name)


def test_names_and_aliases_lead_to_their_service():
    catalog, one, two = Catalog(), service("one"), service("two")
    catalog.add(one, ["uno"])
    catalog.add(two)
    assert [catalog.find(name) for name in ("one", "uno", "two")] == [one, one, two]
    assert list(catalog.names) == ["one", "uno", "two"]
    assert list(catalog) == [one, two]
    catalog.replace([(two, [])])
    assert list(catalog.names) == ["two"]
    with pytest.raises(StokerError) as caught:
        catalog.find("uno")
    assert (caught.value.kind, caught.value.code, caught.value.param) == (
        ErrorKind.NOT_FOUND,
        "model_not_found",
        "model",
    )
    catalog.replace([(two, ["uno"]), (one, [])])
    assert catalog.find("uno") is two


@pytest.mark.parametrize(("name", "aliases"), [("one", []), ("uno", []), ("two", ["one"]), ("two", ["2", "2"])])
def test_a_name_that_is_taken_adds_nothing(name, aliases):
    catalog = Catalog()
    catalog.add(service("one"), ["uno"])
    with pytest.raises(ValueError, match="is taken"):
        catalog.add(service(name), aliases)
    assert list(catalog.names) == ["one", "uno"]


def test_an_error_names_what_is_served_but_not_without_end():
    catalog = Catalog()
    for number in range(20):
        catalog.add(service(f"m{number}"))
    with pytest.raises(StokerError, match=r"'m7' and 12 more are served") as caught:
        catalog.find("x" * 10_000)
    assert len(caught.value.message) < 300
