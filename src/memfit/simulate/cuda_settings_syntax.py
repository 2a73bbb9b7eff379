"""The syntax of an allocator settings string: `key:value,key:[a:b,c:d]`, spaces ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Union

from memfit.core.errors import UsageError

Value = Union[str, "tuple[tuple[str, str], ...]"]  # a word, or the pairs of a list in brackets
_ADVICE = "write key:value pairs with commas between, such as max_split_size_mb:128,expandable_segments:True"
_TOKENS = re.compile(r"[,:\[\]]|[^,:\[\]]+")


def parse_pairs(text: str) -> Iterator[tuple[str, Value]]:
    """Yield `(key, value)` in order; a comma at the end is allowed. Raises UsageError for other syntax."""
    tokens = _TOKENS.findall("".join(text.split()))
    position = 0
    while position < len(tokens):
        key = tokens[position]
        if key in ",:[]":
            raise UsageError(f"allocator settings {text!r} have {key!r} where a key is expected", _ADVICE)
        if position + 2 >= len(tokens) or tokens[position + 1] != ":":
            raise UsageError(f"allocator setting {key!r} has no value", _ADVICE)
        if tokens[position + 2] == "[":
            value, position = _pairs_in_brackets(key, tokens, position + 3)
        else:
            value, position = tokens[position + 2], position + 3
            if value in ",:]":
                raise UsageError(f"allocator setting {key!r} has no value", _ADVICE)
        yield key, value
        if position < len(tokens) and tokens[position] != ",":
            raise UsageError(f"allocator setting {key!r} is followed by {tokens[position]!r}", _ADVICE)
        position += 1


def single(key: str, value: Value, meaning: str) -> str:
    """`value` as one word; UsageError if it is a list."""
    if isinstance(value, str):
        return value
    raise wrong(key, "[...]", meaning)


def wrong(key: str, value: str, meaning: str) -> UsageError:
    """The error for a value that does not parse, naming key and value."""
    return UsageError(f"allocator setting {key}: {value!r} is not {meaning}", f"give {meaning}")


def _pairs_in_brackets(key: str, tokens: list[str], position: int) -> tuple[Value, int]:
    pairs: list[tuple[str, str]] = []
    while tokens[position:position + 1] != ["]"]:
        item = tokens[position:position + 3]
        if len(item) < 3 or item[1] != ":" or item[0] in ",:[" or item[2] in ",:[]":
            raise UsageError(f"allocator setting {key}: the list near {''.join(item)!r} is not pairs in [ ]",
                             f"write {key}:[64:8,256:4,>:1]")
        pairs.append((item[0], item[2]))
        position += 3
        if tokens[position:position + 1] == [","]:
            position += 1
    return tuple(pairs), position + 1
