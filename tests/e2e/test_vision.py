"""Images from three clients through a real `stoker serve` to a tiny model of Kimi K2.5's shape, and back as usage."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import anthropic
import makers
import numpy as np
import openai
import pytest
from e2e_server import Server
from PIL import Image

PAGE = 16
WRAP = len("image") + 4  # begin, a token per byte of the word, content, end, line break: what stands around an image


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root, data = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("data")
    makers.kimi_k25().write(root)
    running = Server(data, "--model", str(root), "--name", "tiny", "--dtype", "float32", "--kv-memory", "64MiB")
    yield running.wait_ready()
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0) as made:
        yield made


def file(width: int, height: int, seed: int, kind: str = "PNG") -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return encoded(Image.fromarray(values), kind)


def encoded(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def url(width: int, height: int, seed: int, kind: str = "PNG") -> str:
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file(width, height, seed, kind)).decode()}"


def tokens(width: int, height: int) -> int:
    return -(-width // 28) * -(-height // 28)


def parts(*content: str) -> list[Any]:
    """Texts and data URLs as OpenAI's parts."""
    return [
        {"type": "image_url", "image_url": {"url": part, "detail": "high"}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in content
    ]


def ask(client: openai.OpenAI, content: Any, **more: Any) -> Any:
    request: Any = {"temperature": 0.0, "max_tokens": 4, "logprobs": True, "top_logprobs": 3, **more}
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": content}], **request)


def cached(answer: Any) -> int:
    return answer.usage.prompt_tokens_details.cached_tokens


def first_logprob(answer: Any) -> float:
    return answer.choices[0].logprobs.content[0].logprob


def test_image_tokens_are_counted_wherever_tokens_are(client: openai.OpenAI, server: Server) -> None:
    content = parts("Look: ", url(100, 60, 1), "and", url(29, 28, 2, "JPEG"))
    plain = ask(client, "Look: and").usage.prompt_tokens
    answer = ask(client, content)
    assert answer.usage.prompt_tokens == plain + tokens(100, 60) + tokens(29, 28) + 2 * WRAP
    counted: Any = client.post("/tokenize", body={"messages": [{"role": "user", "content": content}]}, cast_to=object)
    assert counted["count"] == len(counted["tokens"]) == answer.usage.prompt_tokens


async def test_an_image_is_seen_once_and_then_found(client: openai.OpenAI, server: Server) -> None:
    seen = url(140, 140, 3)
    first = ask(client, parts("A picture of some size: ", seen, " What is it?"))
    before = (await server.idle("tiny"))["image_tokens"]
    again = ask(client, parts("A picture of some size: ", seen, " What is it?"))
    more = ask(client, parts("A picture of some size: ", seen, " What is it? Tell me more."))
    assert (await server.idle("tiny"))["image_tokens"] == before
    assert cached(again) == (first.usage.prompt_tokens - 1) // PAGE * PAGE
    assert cached(more) >= tokens(140, 140) // PAGE * PAGE
    assert first_logprob(again) == pytest.approx(first_logprob(first), abs=1e-4)


def test_another_image_of_the_same_size_is_never_taken_for_it(client: openai.OpenAI) -> None:
    answers = [ask(client, parts("Whose is this? ", url(84, 84, seed), " Hm?")) for seed in (10, 11, 12)]
    assert len({answer.usage.prompt_tokens for answer in answers}) == 1
    assert all(cached(answer) <= PAGE for answer in answers[1:]), "no more than what is before the image"
    assert len({round(first_logprob(answer), 5) for answer in answers}) == 3
    back = ask(client, parts("Whose is this? ", url(84, 84, 10), " Hm?"))
    assert first_logprob(back) == pytest.approx(first_logprob(answers[0]), abs=1e-4)
    assert cached(back) == (back.usage.prompt_tokens - 1) // PAGE * PAGE


def test_placeholders_in_a_text_are_text(client: openai.OpenAI) -> None:
    forged = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    plain, answer = ask(client, "x"), ask(client, forged)
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens + len(forged) - 1
    both = ask(client, parts(forged, url(56, 28, 4)))
    assert both.usage.prompt_tokens == answer.usage.prompt_tokens + 2 + WRAP


def test_a_stream_and_several_choices(client: openai.OpenAI) -> None:
    content = parts(url(60, 90, 5), "?")
    whole = ask(client, content, n=3, temperature=1.0, seed=1)
    assert len(whole.choices) == 3
    chunks = list(ask(client, content, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_the_messages_api_with_an_image_in_a_result(server: Server) -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(file(84, 56, 6)).decode()}
    picture: Any = {"type": "image", "source": source}
    call: Any = {"type": "tool_use", "id": "functions.see:0", "name": "see", "input": {}}

    def conversation(*result: Any) -> Any:
        return [
            {"role": "user", "content": [{"type": "text", "text": "See."}]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "functions.see:0", "content": result}]},
        ]

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        text: Any = {"type": "text", "text": "here"}
        counts = [
            client.messages.count_tokens(model="tiny", messages=conversation(*result)).input_tokens
            for result in ([text], [text, picture])
        ]
        assert counts[1] - counts[0] == tokens(84, 56) + WRAP
        answer = client.messages.create(model="tiny", max_tokens=4, messages=conversation(text, picture))
        assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counts[1]


def test_the_responses_api_goes_on_with_an_image_that_it_remembers(client: openai.OpenAI) -> None:
    content: Any = [{"type": "input_text", "text": "See: "}, {"type": "input_image", "image_url": url(112, 56, 7)}]
    options: Any = {"model": "tiny", "max_output_tokens": 4, "temperature": 0.0}
    first = client.responses.create(input=[{"role": "user", "content": content}], **options)
    assert first.usage is not None
    assert first.usage.input_tokens > tokens(112, 56)
    second = client.responses.create(input="And?", previous_response_id=first.id, **options)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= tokens(112, 56)


@pytest.mark.parametrize(
    ("link", "code"),
    [
        ("https://127.0.0.1/a.png", "image_url_refused"),
        ("https://localhost:1/a.png", "image_url_refused"),
        ("https://[::ffff:10.0.0.1]/a.png", "image_url_refused"),
        ("http://example.org/a.png", "image_url_refused"),
        ("file:///etc/passwd", "image_url_refused"),
        ("data:image/png;base64,AAAA", "invalid_image"),
        (url(30, 30, 8)[:-400], "invalid_image"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "invalid_image"),
    ],
)
def test_what_cannot_be_used_is_named_and_harms_nobody(client: openai.OpenAI, link: str, code: str) -> None:
    content = [*parts("Look: ", url(30, 30, 8)), {"type": "image_url", "image_url": {"url": link}}]
    with pytest.raises(openai.BadRequestError) as failure:
        ask(client, content)
    assert failure.value.code == code
    assert failure.value.param == "messages[0].content[2]"
    assert ask(client, parts(url(30, 30, 8))).usage.prompt_tokens > 4


def test_a_prompt_that_is_too_long_because_of_its_images(client: openai.OpenAI, server: Server) -> None:
    limit = client.models.retrieve("tiny").model_dump()["context_length"]
    assert limit > 10_000
    plain = encoded(Image.new("RGB", (1200, 1200)), "PNG")  # one colour takes few bytes
    large = f"data:image/png;base64,{base64.b64encode(plain).decode()}"
    count = limit // tokens(1200, 1200) + 1
    with pytest.raises(openai.BadRequestError) as failure:
        ask(client, parts(*[large] * count))
    assert failure.value.code == "context_length_exceeded"


async def test_nothing_is_left_running(server: Server) -> None:
    stats = await server.idle("tiny")
    assert stats["failed_checks"] == 0
    assert not [line for line in server.lines() if line["level"] == "error"]
