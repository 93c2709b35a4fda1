"""Every field of the request types of PyPI's `openai` is honoured or refused by its name.

Which fields there are is read from the client itself, so a new version of it that knows more of them fails here until
somebody says what becomes of them.
"""

import typing

import openai
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}

# For each endpoint: the type, what a request needs, and the fields that are honoured with a value of each. All other
# fields of the type are refused by name, whatever they say.
ENDPOINTS = {
    "chat/completions": (
        chat_create_params.CompletionCreateParamsBase,
        {"messages": MESSAGES, "max_tokens": 2},
        {
            "model": "bundled", "messages": MESSAGES, "frequency_penalty": 0.5, "logit_bias": {"5": -1}, "logprobs": True,
            "max_completion_tokens": 3, "max_tokens": 3, "metadata": {"a": "b"}, "modalities": ["text"], "n": 2,
            "parallel_tool_calls": False, "presence_penalty": 0.5, "prompt_cache_key": "k",
            "prompt_cache_retention": "in_memory", "reasoning_effort": "low", "response_format": {"type": "text"},
            "safety_identifier": "s", "seed": 1, "service_tier": "auto", "stop": ["x"], "store": False,
            "stream_options": {"include_usage": True}, "temperature": 0.5, "tool_choice": "auto", "tools": [TOOL],
            "top_logprobs": 1, "top_p": 0.5, "user": "me", "verbosity": "medium",
        },
    ),
    "completions": (
        completion_create_params.CompletionCreateParamsBase,
        {"prompt": "Hi", "max_tokens": 2},
        {
            "model": "bundled", "prompt": ["a", "b"], "best_of": 2, "echo": True, "frequency_penalty": 0.5,
            "logit_bias": {"5": -1}, "logprobs": 1, "max_tokens": 3, "n": 2, "presence_penalty": 0.5, "seed": 1,
            "stop": "x", "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.5, "user": "me",
        },
    ),
    "embeddings": (
        embedding_create_params.EmbeddingCreateParams,
        {"input": "Hi"},
        {"model": "bundled", "input": [[1, 2]], "dimensions": 4, "encoding_format": "base64", "user": "me"},
    ),
    "responses": (
        response_create_params.ResponseCreateParamsBase,
        {"input": "Hi", "max_output_tokens": 2},
        {
            "model": "bundled", "input": [{"role": "user", "content": "Hi"}], "background": False,
            "include": ["message.output_text.logprobs"], "instructions": "Be brief.", "max_output_tokens": 3,
            "metadata": {"a": "b"}, "parallel_tool_calls": False, "previous_response_id": None, "prompt_cache_key": "k",
            "prompt_cache_retention": "in_memory", "reasoning": {"effort": "low"}, "safety_identifier": "s",
            "service_tier": "auto", "store": False, "stream_options": {"include_obfuscation": False}, "temperature": 0.5,
            "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [FLAT], "top_logprobs": 1, "top_p": 0.5,
            "truncation": "disabled", "user": "me",
        },
    ),
}

# Values that cannot be honoured, of fields that are known.
REFUSED = {
    "chat/completions": {
        "modalities": ["text", "audio"], "prompt_cache_retention": "24h", "response_format": {"type": "grammar"},
        "service_tier": "priority", "store": True, "stream_options": {"include_obfuscation": True},
        "tool_choice": {"type": "custom", "custom": {"name": "x"}}, "verbosity": "low",
    },
    "completions": {"suffix": "end", "best_of": 0},
    "embeddings": {"dimensions": 10**9, "encoding_format": "int8"},
    "responses": {
        "background": True, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"},
        "service_tier": "flex", "text": {"verbosity": "low"}, "tools": [{"type": "web_search"}], "truncation": "auto",
        "previous_response_id": "resp_none",
    },
}

# What belongs to a field for it to be of use.
BESIDE = {
    "top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}, "tool_choice": {"tools": [TOOL]},
    "best_of": {"n": 1},
}


def send(client: openai.OpenAI, path: str, request: dict):
    """A request as it stands; the client's own methods would refuse what they do not know."""
    return client.post(f"/{path}", body=request, cast_to=object)


def refuses(client: openai.OpenAI, path: str, needs: dict, field: str, value) -> None:
    beside = {} if path == "responses" else BESIDE.get(field, {})
    try:
        send(client, path, {**needs, **beside, field: value})
    except openai.BadRequestError as error:
        named = str(error.param).split(".")[0].split("[")[0]
        assert named == field, f"{path}: {field}={value!r} is refused as {error.param}: {error}"
        return
    raise AssertionError(f"{path}: {field}={value!r} was taken")


def check(client: openai.OpenAI) -> None:
    for path, (kind, needs, honoured) in ENDPOINTS.items():
        fields = set(typing.get_type_hints(kind))
        assert set(honoured) <= fields, set(honoured) - fields
        for field, value in honoured.items():
            beside = {} if path == "responses" else BESIDE.get(field, {})
            if field == "stream_options":
                stream = client.chat.completions if path.startswith("chat") else client.completions
                if path != "responses":
                    assert list(stream.create(model="bundled", **needs, stream=True, stream_options=value))
                continue
            send(client, path, {**needs, **beside, field: value})
        for field in fields - set(honoured) - set(REFUSED[path]):
            for value in ("x", {"type": "x"}, [1], 1):
                refuses(client, path, needs, field, value)
        for field, value in REFUSED[path].items():
            refuses(client, path, needs, field, value)
