"""What a server has to probe, and how to ask without disturbing it: one file for each kind of server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Model:
    """A model of a server: `identity` changes when it was loaded anew or in another version.

    `context`: the tokens that prompt and answer may have together, None if the server does not tell.
    `why_not`: why it must not be probed now, empty if it may.
    """

    name: str
    identity: str = ""
    context: int | None = None
    why_not: str = ""


class Host(Protocol):
    """One server, whatever its engine."""

    backend: str
    dialect: str
    """The dialect it is asked in if the configuration names none."""

    look_every: float | None
    """Seconds between two looks that it needs while nothing is probed; None: no looks."""

    async def look(self) -> Mapping[str, Model]:
        """Return its models by name; ApiError if it does not tell."""
        ...

    def extras(self, max_tokens: int) -> Mapping[str, object]:
        """Return the further keys of a request that this engine knows, though not every version of it."""
        ...

    def keep_alive(self, model: str, dialect: str, lasting: float) -> str | int | None:
        """Return the keep_alive of a request that will end in about `lasting` seconds; it is about to be sent."""
        ...

    async def settle(self, model: str, waited: float, *, refused: bool) -> None:
        """Put right what a request changed that waited so many seconds for its turn; ApiError.

        `refused`: it never came to the model.
        """
        ...


def wanted(name: str, models: tuple[str, ...]) -> bool:
    """Return whether a model is among those of the configuration, where none means all and :latest may be left out."""
    return not models or name in models or name.removesuffix(":latest") in models
