"""A tokenizer and a language model of no intelligence: words to stable numbers and back."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import lru_cache

_PIECE = re.compile(r" ?\w+| ?[^\w\s]|\s+")

WORDS = tuple(
    f" {word}"
    for word in """
    the a of to and in is that it for as with on by at from this which or an be are was has not but they one all
    can more when there up out them then she many some these would other into could time two may like now people
    than first water been long little very after words called just where most know get through back much before
    go good new write our used me man too any day same right look think also around another came come work three
    word must because does part even place well such here take why things help put years different away again off
    went old number great tell men say small every found still between name should home big give
    """.split()  # noqa: SIM905 - a list of 130 quoted words would hide what it is
)
"""What the model says; their number has no factor in common with the strides below."""

_STRIDES = (7, 11, 17, 23, 29, 37, 41, 53)


@lru_cache(maxsize=65536)
def token_id(piece: str) -> int:
    """Return the number of a piece of text: the same in every process."""
    return zlib.crc32(piece.encode())


IDS = tuple(token_id(word) for word in WORDS)
_TEXT = dict(zip(IDS, WORDS, strict=True))


def encode(text: str) -> list[int]:
    """Split text in tokens, about one a word: what `decode` makes of generated tokens gives the same ones back."""
    return [token_id(piece) for piece in _PIECE.findall(text)]


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """Tokens of a conversation of (role, content): a longer one starts with all of a shorter one."""
    tokens: list[int] = []
    for role, content in messages:
        tokens += [token_id(f"<|{role}|>"), *encode(content), token_id("<|end|>")]
    return [*tokens, token_id("<|assistant|>")]


def generated(seed: int, index: int) -> int:
    """Return the token that the model says at `index`; no word comes twice within any 30 tokens."""
    return IDS[(seed + index * _STRIDES[seed % len(_STRIDES)]) % len(IDS)]


def decode(tokens: Iterable[int]) -> str:
    """Return the text of generated tokens."""
    return "".join(_TEXT.get(token, " ?") for token in tokens)
