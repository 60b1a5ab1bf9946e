"""Faults of the paged cache, planted one by one; a test must notice each.

As in test_planted_in_caches.py a line is replaced in memory. The tests then find the
module's names with the fault in them.
"""

import inspect
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_caches
import test_paged

from aiayn import paged

SOURCE = Path(paged.__file__)
NAMES = (
    "BlockAllocator", "OutOfBlocks", "PagedKVCache", "PrefixCache", "paged_attention",
    "blocks_needed", "slot", "paged",
)  # fmt: skip
RAGGED = {"size": 4, "n_heads": 6}


@dataclass(frozen=True)
class Fault:
    """What is replaced in paged.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


FAULTS = {
    "a block more at a multiple": Fault(
        "return -(-n_tokens // block_size)", "return n_tokens // block_size + 1",
        "test_blocks_are_counted_by_rounding_up",
    ),
    "a block too late": Fault(
        "return -(-n_tokens // block_size)",
        "return -(-max(n_tokens - 1, 0) // block_size)",
        "test_a_cache_writes_where_the_slot_says", {"size": 4},
    ),
    "the last block for what is beyond": Fault(
        "block = blocks[position // block_size]\n", "block = blocks[-1]\n",
        "test_a_slot_follows_from_the_table",
    ),
    "some blocks, not all": Fault(
        "raise OutOfBlocks(n, self.n_free)",
        "heapq.heappop(self._free) if self._free else 0\n            "
        "raise OutOfBlocks(n, self.n_free)",
        "test_several_blocks_or_none",
    ),
    "freed at once": Fault(
        "if self._references[block] == 0:", "if self._references[block] <= 1:",
        "test_a_child_survives_its_parent_and_nothing_is_freed_twice",
    ),
    "freed twice": Fault(
        "if self.references(block) < times:", "if False:",
        "test_a_child_survives_its_parent_and_nothing_is_freed_twice",
    ),
    "counts seen one by one": Fault(
        "for block, times in Counter(blocks).items():",
        "for block, times in ((b, 1) for b in blocks):",
        "test_a_list_with_one_wrong_block_changes_none", {"name": "free"},
    ),
    "shared though free": Fault(
        "if self.references(block) == 0:", "if False:",
        "test_a_list_with_one_wrong_block_changes_none", {"name": "share"},
    ),
    "blocks taken for neighbours": Fault(
        "if list(blocks) == list(range(first, first + len(blocks))):", "if True:",
        "test_rows_of_unequal_length_through_a_table", RAGGED,
    ),
    "the table upside down": Fault(
        "zip(*(row[columns] for row in table))", "(row[columns] for row in table)",
        "test_order_in_memory_changes_no_bit",
        {"size": 3, "dtype": test_paged.torch.float64},
    ),
    "free slots are read": Fault(
        "slice(whole, whole + 1), tail)", "slice(whole, whole + 1), None)",
        "test_rows_of_unequal_length_through_a_table", RAGGED,
    ),
    "the tail is forgotten": Fault(
        "if tail and columns.stop >= whole:", "if tail and not whole:",
        "test_rows_of_unequal_length_through_a_table", RAGGED,
    ),
    "parts averaged": Fault(
        "total = part if total is None else merge_partial_attention(total, part)",
        "total = part if total is None else PartialAttention(*(sum(x) / 2 for x in "
        "zip(total, part)))",
        "test_any_lengths_queries_masks_and_parts",
    ),
    "a mask for the first part": Fault(
        "mask = mask[..., keys]", "mask = mask[..., : keys.stop - keys.start]",
        "test_any_lengths_queries_masks_and_parts",
    ),
    "the flag is forgotten": Fault(
        "if causal and keys.stop > n_keys - n_queries + 1:", "if False:",
        "test_any_lengths_queries_masks_and_parts",
    ),
    "the edge one place off": Fault(
        "keys.stop > n_keys - n_queries + 1", "keys.stop > n_keys - n_queries + 2",
        "test_any_lengths_queries_masks_and_parts",
    ),
    "the scale is forgotten": Fault(
        "(d_k**-0.5 if scale is None else scale)", "(d_k**-0.5)",
        "test_any_lengths_queries_masks_and_parts",
    ),
    "sentinels are indices": Fault(
        "if not 0 <= block < n_blocks:", "if block >= n_blocks:",
        "test_table_entries_that_are_no_block_are_refused", {"wrong": -1},
    ),
    "lengths beyond the blocks": Fault(
        "if not 0 <= length <= len(blocks) * block_size:", "if length < 0:",
        "test_table_entries_that_are_no_block_are_refused", {"wrong": 7},
    ),
    "no copy on write": Fault(
        "if others[tail] > 1:", "if False:", "test_rows_share_until_one_writes",
    ),
    "the last one copies too": Fault(
        "others[tail] -= 1\n", "pass\n", "test_rows_share_until_one_writes",
    ),
    "full blocks are copied": Fault(
        "if n_new == 0 or past % size == 0:", "if n_new == 0 or past == 0:",
        "test_rows_share_until_one_writes",
    ),
    "values are not copied": Fault(
        "for x in (self.allocator.keys, self.allocator.values):\n"
        "                    old, new",
        "for x in (self.allocator.keys,):\n                    old, new",
        "test_rows_share_until_one_writes",
    ),
    "the old tail is never given back": Fault(
        "raise\n        self.allocator.free(left)", "raise",
        "test_rows_share_until_one_writes",
    ),
    "a failed call keeps its blocks": Fault(
        "self.allocator.free(taken)\n            raise", "raise",
        "test_a_call_that_fails_gives_its_blocks_back", {"when": "mix"},
    ),
    "a failed call keeps its table": Fault(
        "self._tables, self._length = tables, past\n", "self._length = past\n",
        "test_a_call_that_fails_gives_its_blocks_back", {"when": "mix"},
    ),
    "a copy counts for nothing": Fault(
        "needed = len(split) + n_columns * len(self._tables)",
        "needed = n_columns * len(self._tables)",
        "test_running_out_loses_nothing", {"n_new": 1},
    ),
    "references dropped before they are added": Fault(
        "self.allocator.share(list((after - before).elements()))\n"
        "        self.allocator.free(list((before - after).elements()))",
        "self.allocator.free(list(before.elements()))\n"
        "        self.allocator.share(list(after.elements()))",
        "test_rows_share_until_one_writes",
    ),
    "a crop keeps its blocks": Fault(
        "self._refer([blocks[:kept] for blocks in self._tables])", "pass",
        "test_going_back_gives_blocks_back",
    ),
    "a crop drops a block too many": Fault(
        "kept, self._length = blocks_needed(n, self.allocator.block_size), n",
        "kept, self._length = n // self.allocator.block_size, n",
        "test_going_back_into_a_full_block_that_is_shared",
    ),
    "another mix is taken for attention": Fault(
        "function is known", "True",
        "test_a_mix_that_is_not_known_gets_what_it_expects",
    ),
    "everything is gathered": Fault(
        "if not computes_the_same(mix, query, *pool):", "if True:",
        "test_a_step_reads_blocks_in_place", {"module": test_paged.attention},
    ),
    "a name without the prefix": Fault(
        "file = before, whole", 'file = "any", whole',
        "test_a_block_is_found_by_the_whole_prefix_only",
    ),
    "a hash for a name": Fault(
        "file = before, whole", "file = before, hash(whole)",
        "test_equal_hashes_do_not_mix_sequences",
    ),
    "the context is forgotten": Fault(
        'return "start", context', 'return "start", None',
        "test_the_context_belongs_to_the_prefix",
    ),
    "a match without references": Fault(
        "self.allocator.share(found)\n", "pass\n",
        "test_a_block_is_found_by_the_whole_prefix_only",
    ),
    "a tail is filed": Fault(
        "range(0, len(tokens) - size + 1, size)", "range(0, len(tokens), size)",
        "test_a_block_is_found_by_the_whole_prefix_only",
    ),
    "evicted from under another": Fault(
        "if block not in followed and", "if",
        "test_eviction_takes_the_longest_unused_end_and_nothing_in_use",
    ),
    "filed before all is checked": Fault(
        "                fresh[before, whole] = block\n",
        "                self.allocator.share([block])\n"
        "                self._block_of[before, whole] = block\n",
        "test_a_row_with_something_wrong_is_not_filed_at_all",
    ),
    "one block for two prefixes": Fault(
        "        if twice:\n", "        if False:\n",
        "test_a_row_with_something_wrong_is_not_filed_at_all",
    ),
    "one block on file for another prefix": Fault(
        "twice = set(fresh) & set(self._block_of.values())", "twice = set()",
        "test_a_row_with_something_wrong_is_not_filed_at_all",
    ),
    "a tensor is looked up by identity": Fault(
        "if isinstance(context, Tensor):  # it would", "if False:  #",
        "test_a_tensor_as_context_is_its_tokens",
    ),
    "a tensor within a tuple": Fault(
        "if self._holds_tensor(context):", "if isinstance(context, Tensor):",
        "test_a_tensor_as_context_is_its_tokens",
    ),
    "adopted more often than referred to": Fault(
        "            if held < times:\n", "            if held < 1:\n",
        "test_what_cannot_be_adopted",
    ),
    "adopted before there are keys": Fault(
        "if named and self.allocator.keys is None:", "if False:",
        "test_what_cannot_be_adopted",
    ),
    "True for a scale": Fault(
        "if isinstance(scale, bool) or not isinstance", "if not isinstance",
        "test_a_scale_is_a_number_and_a_width_is_none_without_columns",
    ),
    "no width": Fault(
        " or query.shape[-1] == 0:", ":",
        "test_a_scale_is_a_number_and_a_width_is_none_without_columns",
    ),
    "evicted though in use": Fault(
        "and self.allocator.references(block) == 1:", "and True:",
        "test_eviction_takes_the_longest_unused_end_and_nothing_in_use",
    ),
}  # fmt: skip


def with_line(fault: Fault, line: str) -> types.ModuleType:
    """The module with ``line`` where the right one stands."""
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(fault.right) >= 1, f"{fault.right!r} stands there no more"
    module = types.ModuleType("aiayn.paged")
    module.__package__ = "aiayn"
    exec(compile(source.replace(fault.right, line), "planted", "exec"), vars(module))
    return module


def noticed(fault: Fault, line: str, monkeypatch) -> None:
    """Call the test with what the module holds when ``line`` stands in it."""
    module = with_line(fault, line)
    monkeypatch.setitem(sys.modules, "aiayn.paged", module)
    for tests in (test_caches, test_paged):
        for name in NAMES:
            if hasattr(tests, name):
                new = module if name == "paged" else getattr(module, name)
                monkeypatch.setattr(tests, name, new)
    test, case = getattr(test_paged, fault.test), dict(fault.case)
    if "monkeypatch" in inspect.signature(test).parameters:
        case["monkeypatch"] = monkeypatch
    test(**case)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_test_notices(fault, no_shape_checks, monkeypatch):
    with monkeypatch.context() as patch:
        noticed(fault, fault.right, patch)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        noticed(fault, fault.wrong, monkeypatch)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
