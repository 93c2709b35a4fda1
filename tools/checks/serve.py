"""Second tier: the clients that people have, unmodified, against `gruff serve` with the bundled model.

    python tools/checks/serve.py

Runs target/release/gruff (GRUFF names another) on the loopback interface: PyPI's `openai` and `anthropic`, whole and
streamed, with tools, structured output, embeddings and logprobs, errors as each client's own exceptions; every field of
`openai`'s types of requests; `langchain-openai`; npm's `openai`; `local-completions` of lm-eval; and a stop by SIGTERM.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import openai
import pydantic

import serve_fields

ROOT = Path(__file__).resolve().parents[2]
GRUFF = os.environ.get("GRUFF", ROOT / "target" / "release" / "gruff")
KEY = "a-key-for-this-check"
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


class Weather(pydantic.BaseModel):
    """The weather of a place."""

    place: str = pydantic.Field(max_length=8)
    days: int = pydantic.Field(ge=1, le=9)


def structured(client: openai.OpenAI) -> None:
    ask = {"model": "bundled", "messages": QUESTION, "max_tokens": 300, "seed": 3}
    parsed = client.chat.completions.parse(**ask, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather), parsed
    try:
        client.chat.completions.parse(**{**ask, "max_tokens": 2}, response_format=Weather)
        raise AssertionError("an answer that is cut off has no value")
    except openai.LengthFinishReasonError:
        pass
    response = client.responses.parse(model="bundled", input="Weather?", text_format=Weather, max_output_tokens=300)
    assert isinstance(response.output_parsed, Weather), response
    # A strict function, as the client makes it of a type; it parses the arguments itself.
    tool = openai.pydantic_function_tool(Weather, name="weather")
    choice = {"type": "function", "function": {"name": "weather"}}
    called = client.chat.completions.parse(**ask, tools=[tool], tool_choice=choice, parallel_tool_calls=False)
    call = called.choices[0].message.tool_calls[0].function
    assert isinstance(call.parsed_arguments, Weather), call
    with client.chat.completions.stream(**ask, tools=[tool], tool_choice="required", parallel_tool_calls=False) as stream:
        arguments = "".join(
            event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"
        )
        final = stream.get_final_completion().choices[0].message.tool_calls[0].function
    Weather.model_validate_json(arguments)
    assert final.arguments == arguments and isinstance(final.parsed_arguments, Weather)


def embeddings(client: openai.OpenAI) -> None:
    texts = ["A cat sat on the mat.", "Paris"]
    floats = client.embeddings.create(model="bundled", input=texts, encoding_format="float")
    coded = client.embeddings.create(model="bundled", input=texts)  # base64, decoded by the client
    for one, other in zip(floats.data, coded.data):
        assert math.isclose(math.hypot(*one.embedding), 1, abs_tol=1e-4)
        assert all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(one.embedding, other.embedding))
    short = client.embeddings.create(model="bundled", input="Paris", dimensions=8).data[0].embedding
    assert len(short) == 8 and math.isclose(math.hypot(*short), 1, abs_tol=1e-4)
    raises(openai.BadRequestError, lambda: client.embeddings.create(model="bundled", input=""), "input[0]")


def logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="bundled", messages=QUESTION, temperature=0, max_tokens=16, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes).decode() == answer.choices[0].message.content
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in content)
    scored = client.completions.create(model="bundled", prompt="One two three", echo=True, max_tokens=0, logprobs=1)
    lists = scored.choices[0].logprobs
    assert lists.token_logprobs[0] is None and all(value <= 0 for value in lists.token_logprobs[1:])
    assert scored.choices[0].text == "One two three" and scored.usage.completion_tokens == 0


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


def langchain(address: str) -> None:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(model="bundled", base_url=f"{address}/v1", api_key=KEY, temperature=0, max_tokens=300, max_retries=0)
    whole = chat.invoke("What is the capital of France?")
    assert "Paris" in whole.content, whole
    assert "".join(chunk.content for chunk in chat.stream("What is the capital of France?")) == whole.content
    for method in ("json_schema", "function_calling"):
        value = chat.with_structured_output(Weather, method=method).invoke("Weather?")
        assert isinstance(value, Weather), (method, value)
    bound = chat.bind_tools([Weather], tool_choice="any", parallel_tool_calls=False).invoke("Weather?")
    Weather.model_validate(bound.tool_calls[0]["args"])
    vectors = OpenAIEmbeddings(
        model="bundled", base_url=f"{address}/v1", api_key=KEY, check_embedding_ctx_length=False
    ).embed_documents(["a cat", "a dog"])
    assert len(vectors) == 2 and len(vectors[0]) > 8


def npm(address: str) -> None:
    """npm's client, as its lock file has it, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "tools" / "checks" / "serve_npm", folder, dirs_exist_ok=True)
        quiet = ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(quiet, cwd=folder, check=True)
        environment = {**os.environ, "GRUFF_URL": f"{address}/v1", "GRUFF_KEY": KEY}
        subprocess.run(["node", "check.mjs"], cwd=folder, check=True, env=environment)


TASK = """task: gruff_capitals
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def lm_eval(address: str, client: openai.OpenAI) -> None:
    """`local-completions` scores a task of this folder: prompts with their choices, echoed with logprobs."""
    questions = [
        {"question": "The capital of France is", "choices": [" Paris", " purple", " seven"]},
        {"question": "Once upon a", "choices": [" time", " xylophone", " 93"]},
    ]
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "questions.jsonl"
        lines.write_text("".join(json.dumps(question) + "\n" for question in questions))
        (Path(folder) / "task.yaml").write_text(TASK.replace("QUESTIONS", str(lines)))
        arguments = f"model=bundled,base_url={address}/v1/completions,auth_token={KEY}"
        command = [
            sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments,
            "--tasks", "gruff_capitals", "--include_path", folder, "--batch_size", "2", "--log_samples",
            "--output_path", f"{folder}/out",
        ]
        environment = {
            **os.environ, "OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder,
        }
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert run.returncode == 0, run.stdout
        (samples,) = Path(folder, "out").rglob("samples_*.jsonl")
        for line in samples.read_text().splitlines():
            sample = json.loads(line)
            for choice, response in zip(sample["doc"]["choices"], sample["resps"]):
                (found, _) = response[0]
                prompt = sample["doc"]["question"]
                scored = client.completions.create(
                    model="bundled", prompt=prompt + choice, echo=True, max_tokens=0, logprobs=1
                ).choices[0].logprobs
                own = [value for value, at in zip(scored.token_logprobs, scored.text_offset) if at >= len(prompt)]
                assert math.isclose(float(found), sum(own), abs_tol=1e-3), (found, own)


def main() -> None:
    server, address = start()
    try:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
        chat(client)
        structured(client)
        embeddings(client)
        logprobs(client)
        completions(client)
        serve_fields.check(client)
        responses(client)
        messages(anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0))
        langchain(address)
        npm(address)
        lm_eval(address, client)
        stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
        raises(openai.AuthenticationError, lambda: stranger.models.list())
        stranger = anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0)
        raises(anthropic.AuthenticationError, lambda: stranger.messages.create(model="bundled", messages=QUESTION, max_tokens=1))
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()
    print("openai, anthropic, langchain-openai, npm's openai and lm-eval are served: chat, streams, tools, structured output,")
    print("completions, responses, embeddings, logprobs, messages, every field, errors, keys, a clean stop")


main()
