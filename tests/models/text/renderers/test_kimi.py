"""Call ids in Kimi's own form, over a whole conversation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.models.text.renderers.kimi import native_ids
from stoker.models.text.turns import Call, Conversation, Turn


def calls(*named: tuple[str, str]) -> Turn:
    return Turn(role="assistant", calls=tuple(Call(id, name, "{}") for id, name in named))


def result(id: str) -> Turn:
    return Turn(role="tool", call_id=id)


def ids(*turns: Turn) -> list[str]:
    read = native_ids(Conversation(turns)).turns
    return [name for turn in read for name in ([call.id for call in turn.calls] or [turn.call_id])]


def test_ids_of_others_become_native_with_their_results() -> None:
    found = ids(calls(("call_1", "read"), ("toolu_2", "bash")), result("toolu_2"), result("call_1"),
                calls(("x", "read")), result("x"))  # fmt: skip
    assert found == [
        "functions.read:0", "functions.bash:1", "functions.bash:1", "functions.read:0", "functions.read:2",
        "functions.read:2",
    ]  # fmt: skip


def test_what_the_model_wrote_itself_stays() -> None:
    assert ids(calls(("functions.read:7", "read")), result("functions.read:7")) == ["functions.read:7"] * 2


def test_native_ids_that_repeat_or_name_another_function_are_renamed() -> None:
    found = ids(
        calls(("functions.read:0", "read"), ("functions.read:1", "bash"), ("functions.bash:x", "bash")),
        calls(("functions.read:0", "read")),
        result("functions.read:0"),
    )
    assert found == [
        "functions.read:0", "functions.bash:1", "functions.bash:2", "functions.read:3", "functions.read:3"
    ]  # fmt: skip


def test_a_made_id_never_meets_one_that_is_there() -> None:
    assert ids(calls(("functions.f:1", "f"), ("a", "f"))) == ["functions.f:1", "functions.f:2"]


def test_one_id_for_many_calls_is_answered_in_order() -> None:
    found = ids(
        calls(("c", "f"), ("c", "f")),
        result("c"),
        result("c"),
        calls(("c", "g")),
        result("c"),
        result("c"),
        result("zz"),
    )
    assert found == [
        "functions.f:0", "functions.f:1", "functions.f:0", "functions.f:1", "functions.g:2", "functions.g:2",
        "functions.g:2", "zz",
    ]  # fmt: skip


_name = st.sampled_from(["f", "g"])
_id = st.one_of(st.sampled_from(["a", "b", ""]), st.builds("functions.{}:{}".format, _name, st.integers(0, 4)))
_turn = st.one_of(
    st.lists(st.tuples(_id, _name), min_size=1, max_size=3).map(lambda named: calls(*named)), _id.map(result)
)


@given(st.lists(_turn, max_size=8), st.lists(_turn, max_size=3))
def test_ids_are_unique_native_and_never_change_later(turns: list[Turn], more: list[Turn]) -> None:
    read = native_ids(Conversation(tuple(turns))).turns
    made = [call for turn in read for call in turn.calls]
    assert len({call.id for call in made}) == len(made)
    assert all(call.id.startswith(f"functions.{call.name}:") for call in made)
    assert native_ids(Conversation((*turns, *more))).turns[: len(turns)] == read
    assert native_ids(Conversation(read)).turns == read or any(turn.role == "tool" for turn in read)
