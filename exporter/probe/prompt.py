"""The probe's prompt: of a known size, never the same twice, and one that a model goes on writing from."""

from __future__ import annotations

from dataclasses import dataclass

_SMALL = """\
Below is the beginning of a travel diary. Continue it in the same voice, entry after entry, and do not stop.

Monday. We left the harbour before sunrise, when only the bakers and the gulls were awake. The old ferry \
smelled of tar and oranges, and its captain, a tall woman with a silver whistle, told us which islands still \
had drinking water. By noon the wind had turned, so we rowed the last mile and pulled the boat up between two \
grey rocks. A boy sold us figs, goat cheese and a map that his grandfather had drawn in pencil.

Tuesday. The path climbed through pine woods to a chapel without a roof. Somebody had planted beans along its \
walls. From there we counted nine sails, three lighthouses and one very slow storm, which reached us exactly \
when supper was ready. We slept in the bell tower and listened to the rain arguing with the shutters.

Wednesday. This morning everything looked washed and new, and we decided to"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: `label` names its size; a server that counts fewer than `min_tokens` tokens has cut it."""

    label: str
    text: str
    min_tokens: int


def small(nonce: str) -> Prompt:
    """Return a prompt of about 220 tokens that begins with `nonce`.

    A cache of prefixes that is asked for a prompt whose first tokens it has not seen cannot answer; what a
    model's template puts before the prompt, a few tokens, may still be cached.
    """
    text = f"{nonce}. {_SMALL}"
    # No tokenizer in use makes fewer than one token of two words of English.
    return Prompt("small", text, len(text.split()) // 2)
