"""Strict readers of event streams: the order that clients rely on, and what they put together from it."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


def check_responses(events: list[Json]) -> Json:
    """Events of /v1/responses, all of them -> the final response, whose output the deltas have been held against."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(event["type"].startswith("response.") for event in events)
    head, body, last = events[:2], events[2:-1], events[-1]
    assert [event["type"] for event in head] == ["response.created", "response.in_progress"]
    for event in head:
        assert event["response"]["status"] == "in_progress"
        assert event["response"]["output"] == []
        assert event["response"]["usage"] is None
    final = last["response"]
    assert last["type"] == f"response.{final['status']}"
    assert {key: final[key] for key in final.keys() - {"status", "output", "usage", "incomplete_details"}} == {
        key: head[0]["response"][key] for key in final.keys() - {"status", "output", "usage", "incomplete_details"}
    }
    items: list[Json] = []
    rest = [(event["type"].removeprefix("response."), event) for event in body]
    while rest:
        items.append(_item(rest, len(items)))
    assert len({item["id"] for item in items}) == len(items)
    assert [item for item in items if item["status"] == "completed"] == final["output"]
    return final


def _item(rest: list[tuple[str, Json]], index: int) -> Json:
    name, added = rest.pop(0)
    assert name == "output_item.added"
    assert added["output_index"] == index
    opened = added["item"]
    assert opened["status"] == "in_progress"
    kind = opened["type"]
    where = {"item_id": opened["id"], "output_index": index}
    if kind == "function_call":
        assert opened["arguments"] == ""
        text = _grow(rest, "function_call_arguments", where, "arguments")
    else:
        assert opened["content"] == []
        where["content_index"] = 0
        _part(rest, "content_part.added", where, kind, "")
        text = _grow(rest, _PARTS[kind], where, "text")
        _part(rest, "content_part.done", where, kind, text)
    name, done = rest.pop(0)
    assert name == "output_item.done"
    item = done["item"]
    assert (done["output_index"], item["id"], item["type"]) == (index, opened["id"], kind)
    if kind == "function_call":
        assert (item["arguments"], item["call_id"], item["name"]) == (text, opened["call_id"], opened["name"])
    else:
        assert [part["text"] for part in item["content"]] == [text]
        assert item["status"] == "completed"
    return item


def _part(rest: list[tuple[str, Json]], expected: str, where: Json, kind: str, text: str) -> None:
    name, event = rest.pop(0)
    assert name == expected
    assert event["part"]["type"] == _PARTS[kind]
    assert event["part"]["text"] == text
    assert where.items() <= event.items()


def _grow(rest: list[tuple[str, Json]], part: str, where: Json, field: str) -> str:
    text = ""
    while rest[0][0] == f"{part}.delta":
        _, event = rest.pop(0)
        assert where.items() <= event.items()
        assert event["delta"]
        text += event["delta"]
    name, done = rest.pop(0)
    assert name == f"{part}.done"
    assert where.items() <= done.items()
    assert done[field] == text
    return text


_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def check_messages(events: list[Json]) -> Json:
    """Events of /v1/messages, all of them -> the message; of a call `input` is the text of its arguments."""
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    assert message["usage"]["output_tokens"] == 0
    ends = events[-2]
    assert set(ends["delta"]) == {"stop_reason", "stop_sequence"}
    for name in ("input_tokens", "cache_read_input_tokens"):
        assert ends["usage"][name] == message["usage"][name]
    message |= ends["delta"] | {"usage": ends["usage"]}
    rest = events[2:-2]
    while rest:
        message["content"].append(_block(rest, len(message["content"])))
    return message


def _block(rest: list[Json], index: int) -> Json:
    started = rest.pop(0)
    assert started["type"] == "content_block_start"
    assert started["index"] == index
    block = started["content_block"]
    kind = block["type"]
    text = ""
    while rest[0]["type"] == "content_block_delta" and rest[0]["delta"]["type"] == _DELTAS[kind]:
        delta = rest.pop(0)
        assert delta["index"] == index
        piece = delta["delta"][_FIELDS[_DELTAS[kind]]]
        assert piece
        text += piece
    if kind == "thinking":
        signed = rest.pop(0)
        assert signed["delta"]["type"] == "signature_delta"
        assert signed["delta"]["signature"]
        block["signature"] = signed["delta"]["signature"]
    stopped = rest.pop(0)
    assert (stopped["type"], stopped["index"]) == ("content_block_stop", index)
    if kind == "tool_use":
        assert block["input"] == {}
        return block | {"input": text, "arguments_valid": stopped.get("arguments_valid", True)}
    return block | {kind: text}
