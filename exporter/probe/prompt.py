"""The probe's prompt: of a chosen size, never the same twice, and one that a model goes on writing from."""

from __future__ import annotations

from random import Random

CHARACTERS_PER_TOKEN = 4.5
"""What English text comes to with today's tokenizers, until a server's own count of a prompt says better."""

_HEAD = "Below is the beginning of a travel diary. Continue it in the same voice, entry after entry, and do not stop.\n"

_TAIL = "\n\nDay {day}. This morning everything looked washed and new, and we decided to"

_SENTENCES = (
    "We left the {place} before {time}, when only the {people} were awake.",
    "The old {thing} smelled of {smell}, and its keeper, a {kind} woman with a silver whistle, laughed at our map.",
    "By {time} the wind had turned, so we walked the last {number} miles along the {place}.",
    "A boy sold us {food} and a picture of the {place} that his grandfather had drawn.",
    "From the {place} we counted {number} sails, two lighthouses and one very slow storm.",
    "Somebody had planted {food} along the walls of a {kind} chapel without a roof.",
    "The {people} said that nobody had crossed the {place} since the year of the great {smell} fire.",
    "Supper was {food} with bread, and afterwards the {people} argued about the {thing} until {time}.",
    "It rained on the {place}, so we mended the {thing} and wrote letters to the {people}.",
    "Our guide, who was {kind} and never in a hurry, carried the {thing} across the {place}.",
    "At {time} a {kind} dog followed us from the {place} and stayed for {number} days.",
    "We slept beside the {thing} and dreamed of {smell} and of the {place} at home.",
)

_WORDS = {
    "place": ("harbour", "island", "valley", "market", "bridge", "forest", "salt lake", "upper village", "north road"),
    "time": ("sunrise", "noon", "midnight", "the third bell", "dusk", "early tea", "the evening ferry"),
    "people": ("bakers", "fishermen", "pilgrims", "teachers", "shepherds", "clockmakers", "two sisters"),
    "thing": ("ferry", "lantern", "cart", "bell tower", "piano", "water mill", "tent", "telescope"),
    "smell": ("oranges", "tar", "wet wool", "cinnamon", "smoke", "cut grass", "iron"),
    "kind": ("tall", "quiet", "cheerful", "stubborn", "one-eyed", "generous", "grey"),
    "food": ("figs", "goat cheese", "beans", "smoked fish", "honey", "chestnuts", "sour apples"),
    "number": ("three", "four", "seven", "nine", "twelve", "twenty"),
}


def write(nonce: str, characters: int) -> str:
    """Return a prompt of about so many characters (220 at least) that begins with `nonce` and depends only on it.

    A cache of prefixes that is asked for a prompt whose first tokens it has not seen cannot answer; what a
    model's template puts before the prompt, a few tokens, may still be cached.  The text never repeats a
    passage, so that a small model does not fall into a loop, which Ollama cuts off.
    """
    random = Random(nonce)  # noqa: S311 - variety, not secrecy
    text, day = f"{nonce}. {_HEAD}", 0
    while len(text) < characters - len(_TAIL) or not day:
        day += 1
        # The last sentence is cut to what is missing, so that the size is met within a word.
        room = characters - len(_TAIL) - len(text)
        text += f"\nDay {day}."
        for template in random.sample(_SENTENCES, 4):
            if room > 0:
                sentence = " " + template.format_map({name: random.choice(words) for name, words in _WORDS.items()})
                text += sentence if len(sentence) <= room else sentence[:room].rpartition(" ")[0]
                room -= len(sentence)
    return text + _TAIL.format(day=day + 1)


def characters_per_token(text: str, tokens: int | None, otherwise: float) -> float:
    """Return what a server's count says of a prompt; a count that no tokenizer gives is left aside."""
    return len(text) / tokens if tokens and 1.0 <= len(text) / tokens <= 12.0 else otherwise


def least_tokens(text: str) -> int:
    """Return a count below which a server has cut the prompt.

    An English word is 1.2 tokens or so, with tokenizers that join words not less than 0.8; an Ollama cuts a prompt
    that is too long to half of its context.
    """
    return len(text.split()) * 2 // 3
