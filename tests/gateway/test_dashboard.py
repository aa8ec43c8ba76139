"""The dashboard asks only for what is exported: names, labels, and values of labels that are closed sets."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import aiohttp
import pytest
from front_fakes import FakeBackend
from prometheus_client.parser import text_string_to_metric_families

from stoker.fleet.backend import ReplicaStatus, RoutingFigures
from stoker.types.wire import EngineStats

BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "stoker.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ASKED = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(variable["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"),
]
ADDED = {"job", "instance"}  # by Prometheus
NAME = re.compile(r"\b(?:stoker|gen_ai|process)_[a-z_]+(?=[{,)\[ ]|$)(\{[^}]*\})?")


class Busy(FakeBackend):
    """A backend of which there is something to say in every metric."""

    def replicas(self):
        engine = EngineStats(**{name: 1 for name in EngineStats.__struct_fields__ if name != "waiting_by_lane"})
        return {"fake/0": ReplicaStatus(status="ready", heartbeat_age=0.1, engine=engine)}

    def routing(self):
        return RoutingFigures(decisions={"load": 1}, index={"fake/0": "exact"}, gaps={"fake/0": 0})


@pytest.fixture
async def exported(launch):
    """name of a series -> the labels that it has, after one request of a session's second turn."""
    server = await launch(Busy())
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            headers = {"x-session-id": "s"}
            async with session.post(f"{server.url}/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200
        async with session.get(f"{server.url}/metrics") as response:
            text = await response.text()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_query_asks_for_series_and_labels_that_exist(exported):
    assert len(ASKED) > 40
    for query in ASKED:
        asked = list(NAME.finditer(query))
        assert asked, query
        known: set[str] = set(ADDED)
        for match in asked:
            name, selector = match[0].split("{")[0], match[1] or ""
            assert name in exported, f"{name} in {query}"
            labels = exported[name] | ADDED
            assert set(re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)", selector)) <= labels, query
            known |= labels
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert set(group.split(", ")) <= known, query


async def test_legends_show_labels_that_are_there(exported):
    for panel in PANELS:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            names = [match[0].split("{")[0] for match in NAME.finditer(target["expr"])]
            assert shown <= ADDED.union(*(exported[name] for name in names)), target
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                assert shown <= set(grouped[1].split(", ")), target


def test_panels_have_places_of_their_own():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
