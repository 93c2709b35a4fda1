"""Second tier: the clients that people have, unmodified, against `gruff serve` with the bundled model.

    python tools/checks/serve.py

Runs target/release/gruff (GRUFF names another) on the loopback interface: PyPI's `openai` and `anthropic`, whole and
streamed, errors as each client's own exceptions, and a stop by SIGTERM.
"""

import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import openai

ROOT = Path(__file__).resolve().parents[2]
GRUFF = os.environ.get("GRUFF", ROOT / "target" / "release" / "gruff")
KEY = "a key for this check"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def start() -> tuple[subprocess.Popen, str]:
    command = [GRUFF, "serve", "--port", "0", "--threads", "2", "--api-key", KEY]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"(http://\S+)/v1", line):
            return server, found[1]
    raise SystemExit("the server did not start")


def raises(kind: type, call, field: str | None = None) -> None:
    try:
        call()
    except kind as error:
        assert field is None or error.param == field, error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def chat(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    ask = lambda **fields: client.chat.completions.create(  # noqa: E731
        model=model, messages=QUESTION, temperature=0, max_tokens=32, **fields
    )
    whole = ask()
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert ask(stop=["Paris"]).choices[0].message.content == text.split("Paris")[0]
    assert len(ask(n=3, seed=1).choices) == 3
    assert ask(tools=[{"type": "function", "function": WEATHER}]).choices[0].message is not None
    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0, max_tokens=32) as stream:
        assert "".join(e.delta for e in stream if e.type == "content.delta") == text
    # Many at once say what each says alone.
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask().choices[0].message.content, range(32)))
    assert set(answers) == {text}, set(answers)
    raises(openai.NotFoundError, lambda: client.chat.completions.create(model="other", messages=QUESTION))
    raises(openai.BadRequestError, lambda: ask(top_p=7), "top_p")
    raises(openai.BadRequestError, lambda: ask(extra_body={"frobnicate": 1}), "frobnicate")


def completions(client: openai.OpenAI) -> None:
    ask = lambda **fields: client.completions.create(model="bundled", temperature=0, **fields)  # noqa: E731
    text = ask(prompt="The capital of France is", max_tokens=8).choices[0].text
    streamed = ask(prompt="The capital of France is", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == text
    several = ask(prompt=["One", "The capital of France is"], max_tokens=8, echo=True)
    assert several.choices[1].text == "The capital of France is" + text


def responses(client: openai.OpenAI) -> None:
    request = {"model": "bundled", "input": "What is the capital of France?", "temperature": 0}
    whole = client.responses.create(**request)
    assert "Paris" in whole.output_text and whole.status == "completed", whole
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(**request) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == whole.output_text
    more = client.responses.create(**{**request, "input": "And of Italy?"}, previous_response_id=whole.id)
    assert more.usage.input_tokens > whole.usage.total_tokens - 8, "the first turn is part of the second"
    raises(openai.BadRequestError, lambda: client.responses.create(**request, previous_response_id="none"))
    raises(openai.BadRequestError, lambda: client.responses.create(**request, truncation="auto"), "truncation")


def messages(client: anthropic.Anthropic) -> None:
    request = {"model": "bundled", "messages": QUESTION, "max_tokens": 32}
    # The client has no sampling parameters of its own any more.
    greedy = {**request, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**greedy)
    assert "Paris" in whole.content[0].text and whole.stop_reason == "end_turn", whole
    with client.messages.stream(**greedy) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
    count = client.messages.count_tokens(model="bundled", messages=QUESTION)
    assert count.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    tool = {"name": "weather", "description": "It.", "input_schema": WEATHER["parameters"]}
    client.messages.create(**greedy, tools=[tool])
    raises(anthropic.BadRequestError, lambda: client.messages.create(**request, extra_body={"top_p": 9}))
    raises(anthropic.NotFoundError, lambda: client.messages.create(**{**request, "model": "other"}))


def main() -> None:
    server, address = start()
    try:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
        chat(client)
        completions(client)
        responses(client)
        messages(anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0))
        stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
        raises(openai.AuthenticationError, lambda: stranger.models.list())
        stranger = anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0)
        raises(anthropic.AuthenticationError, lambda: stranger.messages.create(model="bundled", messages=QUESTION, max_tokens=1))
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
    print("openai and anthropic are served: chat, streams, completions, responses, messages, errors, keys, a clean stop")


main()
