"""Where keys and values live: vLLM's pool of hashed blocks, and llama.cpp's slots that remember their last prompt."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True, eq=False)
class Held:
    """What one request holds in a cache: its tokens (prompt and generated) and where their KV is."""

    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    slot: int = -1


class Cache(Protocol):
    """The memory that an engine takes KV from."""

    @property
    def usage(self) -> float:
        """The share in use, 0 to 1; what is cached but could be evicted counts as free."""
        ...

    def lookup(self, held: Held) -> int:
        """Return how many of a request's first tokens need no computing, if it were admitted now."""
        ...

    def admit(self, held: Held, cached: int, upto: int) -> bool:
        """Take the `cached` tokens found by `lookup` and room for tokens up to `upto`; False if it is full."""
        ...

    def extend(self, held: Held, upto: int) -> bool:
        """Make room for tokens up to `upto`; False, with nothing changed, if it is full."""
        ...

    def release(self, held: Held) -> None:
        """Give back all that a request holds."""
        ...


class PagedCache:
    """A pool of blocks of `block_size` tokens with prefix caching by the chained hash of full blocks.

    As in vLLM one block is never handed out (the null block), freed blocks are evicted least recently used
    first and a request's last block before its first, and the last token of a prompt is always computed.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (one is the null block), got {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users = [0] * num_blocks
        self._hash: list[int | None] = [None] * num_blocks
        self._by_hash: dict[int, int] = {}

    @property
    def usage(self) -> float:
        """The share of the blocks that requests hold."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def lookup(self, held: Held) -> int:
        """Return the tokens of the longest chain of full blocks that are in the pool."""
        if not self.prefix_caching:
            return 0
        found = 0
        for index in range((len(held.tokens) - 1) // self.block_size):
            if self._chain(held, index) not in self._by_hash:
                break
            found += 1
        return found * self.block_size

    def admit(self, held: Held, cached: int, upto: int) -> bool:
        """Share the cached blocks and take new ones; False, with nothing changed, if too few are free."""
        shared = [self._by_hash[self._chain(held, index)] for index in range(cached // self.block_size)]
        idle = sum(1 for block in shared if not self._users[block])
        if -(-upto // self.block_size) - len(shared) > len(self._free) - idle:
            return False
        for block in shared:
            self._free.pop(block, None)
            self._users[block] += 1
        held.blocks = shared
        return self.extend(held, upto)

    def extend(self, held: Held, upto: int) -> bool:
        """Take the blocks that `upto` tokens need beyond those held, and index the ones that become full."""
        need = -(-upto // self.block_size) - len(held.blocks)
        if need > len(self._free):
            return False
        for _ in range(need):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            held.blocks.append(block)
        if self.prefix_caching:
            self._index(held, upto)
        return True

    def release(self, held: Held) -> None:
        """Give the blocks back, last first, so that a prefix outlives what followed it."""
        for block in reversed(held.blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
        held.blocks = []

    def _index(self, held: Held, upto: int) -> None:
        for index in range(min(upto, len(held.tokens)) // self.block_size - 1, -1, -1):
            block = held.blocks[index]
            if self._hash[block] is not None:
                break
            key = self._chain(held, index)
            if key in self._by_hash:
                continue
            self._hash[block] = key
            self._by_hash[key] = block

    def _forget(self, block: int) -> None:
        key = self._hash[block]
        if key is not None:
            del self._by_hash[key]
            self._hash[block] = None

    def _chain(self, held: Held, index: int) -> int:
        size, hashes = self.block_size, held.hashes
        while len(hashes) <= index:
            start = len(hashes) * size
            hashes.append(hash((hashes[-1] if hashes else 0, *held.tokens[start : start + size])))
        return hashes[index]


class SlotCache:
    """`slots` contexts of `context` tokens; a request takes the idle one that shares the longest prefix with it.

    Recorded from Ollama: a prompt that starts as its slot's last one did is not computed again up to where
    the two differ, and its last token always is.
    """

    def __init__(self, slots: int, context: int) -> None:
        self.context = context
        self._memory: list[list[int]] = [[] for _ in range(slots)]
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(slots))
        self._used = [0] * slots

    @property
    def usage(self) -> float:
        """The share of all slots' tokens that running requests occupy."""
        return sum(self._used) / (self.context * len(self._used))

    def lookup(self, held: Held) -> int:
        """Return the longest common prefix with an idle slot's memory."""
        return self._best(held)[1]

    def admit(self, held: Held, cached: int, upto: int) -> bool:
        """Take the slot; False if all are busy."""
        if not self._idle:
            return False
        held.slot = self._best(held)[0]
        del self._idle[held.slot]
        return self.extend(held, upto)

    def extend(self, held: Held, upto: int) -> bool:
        """Note how far the slot is filled; its room was reserved when the model was loaded."""
        self._used[held.slot] = upto
        return True

    def release(self, held: Held) -> None:
        """Leave the tokens behind in the slot for the next request."""
        if held.slot >= 0:
            self._memory[held.slot] = held.tokens[: self._used[held.slot]]
            self._used[held.slot] = 0
            self._idle[held.slot] = None
            held.slot = -1

    def _best(self, held: Held) -> tuple[int, int]:
        best, longest = -1, -1
        for slot in self._idle:
            common = _common_prefix(held.tokens, self._memory[slot])
            if common > longest:
                best, longest = slot, common
        return best, min(max(longest, 0), len(held.tokens) - 1)


def _common_prefix(left: list[int], right: list[int]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])
