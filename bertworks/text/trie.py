"""A vocabulary as a trie that compiled code walks: the longest piece that fits, letter by letter.

The trie is a double array: the child of a node by a letter lies in slot `base[node] + letter`, and is there if
`check` of that slot names the node. A step is one look at one place, and since nodes are placed level by level, the
busy ones near the root lie close together: 30,522 pieces take about a megabyte, which stays in the cache of a core.
"""

from typing import Any

import numpy as np

from bertworks.text.kernel import BASE, CHECK, PIECE, ROOT, ROOT_OF_CONTINUATIONS, compiled

_FREE = -1
_MAX_TRIED = 256  # slots tried for a node before the search gives up the part of the trie where it began


@compiled
def build_trie(letters: Any, lengths: Any, ids: Any, num_firsts: int, num_letters: int) -> Any:
    """Build from pieces laid end to end as letter numbers; those from `num_firsts` on are continuations."""
    parents, by_letter, ends = _grow_nodes(letters, lengths, ids, num_firsts)
    first_child, children = _list_children(parents)
    trie = np.full((2 * len(parents) + 2 * num_letters, 3), _FREE, np.int32)
    trie[:, PIECE] = 0
    slot_of = np.zeros(len(parents), np.int64)
    slot_of[1] = ROOT_OF_CONTINUATIONS
    trie[:2, CHECK] = -2  # taken, and nobody's children
    queue = np.zeros(len(parents), np.int64)
    queue[1], queued, first_free, first_tried = 1, 2, 2, 2
    for turn in range(len(parents)):
        node = queue[turn]
        slot = slot_of[node]
        trie[slot, PIECE] = ends[node]
        own = children[first_child[node] : first_child[node + 1]]
        if len(own) == 0:
            trie[slot, BASE] = 0
            continue
        while trie[first_free, CHECK] != _FREE:
            first_free += 1
        first_tried = max(first_tried, first_free)
        base, num_tried = _find_base(trie, by_letter[own], first_free if len(own) == 1 else first_tried)
        if num_tried > _MAX_TRIED:
            first_tried += num_tried  # or every node with many children would fail there again: a square of the pieces
        if base + num_letters >= len(trie):
            trie = _lengthened(trie, base + 2 * num_letters)
        trie[slot, BASE] = base
        for child in own:
            slot_of[child] = base + by_letter[child]
            trie[slot_of[child], CHECK] = slot
            queue[queued] = child
            queued += 1
    return trie


@compiled
def _grow_nodes(letters: Any, lengths: Any, ids: Any, num_firsts: int) -> Any:
    """Insert every piece into a plain trie: of each node its parent, letter, and id plus one of the piece it ends."""
    parents = np.zeros(len(letters) + 2, np.int64)
    by_letter = np.zeros(len(letters) + 2, np.int64)
    ends = np.zeros(len(letters) + 2, np.int32)
    child_of = {(np.int64(0), np.int64(0)): np.int64(0)}
    num_nodes, position = 2, 0
    for piece in range(len(ids)):
        node = np.int64(ROOT if piece < num_firsts else ROOT_OF_CONTINUATIONS)
        for _ in range(lengths[piece]):
            key = (node, letters[position])
            position += 1
            if key not in child_of:
                child_of[key] = np.int64(num_nodes)
                parents[num_nodes], by_letter[num_nodes] = key
                num_nodes += 1
            node = child_of[key]
        ends[node] = ids[piece] + 1
    return parents[:num_nodes], by_letter[:num_nodes], ends[:num_nodes]


@compiled
def _list_children(parents: Any) -> Any:
    """Group nodes by parent: the children of node n are `children[first_child[n]:first_child[n + 1]]`."""
    first_child = np.zeros(len(parents) + 1, np.int64)
    for node in range(2, len(parents)):
        first_child[parents[node] + 1] += 1
    first_child = np.cumsum(first_child)
    children = np.zeros(len(parents), np.int64)
    filled = first_child.copy()
    for node in range(2, len(parents)):
        children[filled[parents[node]]] = node
        filled[parents[node]] += 1
    return first_child, children


@compiled
def _find_base(trie: Any, letters: Any, first_slot: int) -> tuple[int, int]:
    """Return the lowest base at which the slots of all letters are free, and how many others it tried.

    The slots begin at a given one; past the end of the trie all are free.
    """
    lowest = letters.min()
    slot = max(first_slot, lowest)
    num_tried = 0
    while True:
        base = slot - lowest
        fits = True
        for letter in letters:
            if base + letter < len(trie) and trie[base + letter, CHECK] != _FREE:
                fits = False
                break
        if fits:
            return base, num_tried
        slot += 1
        num_tried += 1


@compiled
def _lengthened(trie: Any, num_slots: int) -> Any:
    longer = np.full((max(num_slots, len(trie) * 5 // 4), 3), _FREE, np.int32)
    longer[:, PIECE] = 0
    longer[: len(trie)] = trie
    return longer
