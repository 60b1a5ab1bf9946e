"""Faults of caches, planted one by one; the suite of every cache must notice.

As in test_planted_in_attention.py a line is replaced in memory. The tests then find the
module's names with the fault in them.
"""

import inspect
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import test_caches
import test_kv_cache
import torch

from aiayn import kv_cache

SOURCE = Path(kv_cache.__file__)
PLAIN = {"kind": {"norm_first": True}, "left": True}  # four splits, not all


@dataclass(frozen=True)
class Fault:
    """What is replaced in kv_cache.py, and the call that must fail."""

    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)


FAULTS = {
    "the past is not counted": Fault(
        "self._length = end  # nothing failed",
        "self._length = key.shape[-2]  # nothing failed",
        "test_a_store_sees_past_and_new_keys_at_every_split",
    ),
    "values of the first call": Fault(
        "self._values[:, :, past:end] = value",
        "self._values[:, :, past:end] = value if past == 0 else 0",
        "test_a_store_sees_past_and_new_keys_at_every_split",
    ),
    "a call sees the past only": Fault(
        "seen = self._keys[:, :, :end], self._values[:, :, :end]",
        "seen = self._keys[:, :, :past or end], self._values[:, :, :past or end]",
        "test_a_store_sees_past_and_new_keys_at_every_split",
    ),
    "a call sees the empty room": Fault(
        "seen = self._keys[:, :, :end], self._values[:, :, :end]",
        "seen = self._keys, self._values",
        "test_a_store_sees_past_and_new_keys_at_every_split",
    ),
    "the mask is forgotten": Fault(
        "heads = mix(query, *seen, mask, causal=causal)",
        "heads = mix(query, *seen, causal=causal)",
        "test_a_mask_covers_past_and_new_keys", {"causal": False},
    ),
    "the flag is forgotten": Fault(
        "heads = mix(query, *seen, mask, causal=causal)",
        "heads = mix(query, *seen, mask)",
        "test_cached_equals_plain_at_every_split", PLAIN,
    ),
    "the flag is always set": Fault(
        "heads = mix(query, *seen, mask, causal=causal)",
        "heads = mix(query, *seen, mask, causal=True)",
        "test_the_queries_of_one_call_see_each_other_without_the_flag",
    ),
    "counted before it is answered": Fault(
        "heads = mix(query, *seen, mask, causal=causal)",
        "self._length = end; heads = mix(query, *seen, mask, causal=causal)",
        "test_a_call_that_fails_has_added_nothing", {"past": 4},
    ),
    "one token too many": Fault(
        "len(self) + n_new > self.capacity", "len(self) + n_new > self.capacity + 1",
        "test_full_to_the_last_place_and_not_beyond", {"pieces": [4]},
    ),
    "one token too few": Fault(
        "len(self) + n_new > self.capacity", "len(self) + n_new >= self.capacity",
        "test_full_to_the_last_place_and_not_beyond", {"pieces": [4]},
    ),
    "capacity seen late": Fault(
        "layer.self_attention.check_room(is_token.shape[1])", "pass",
        "test_a_capacity_is_refused_before_any_layer_projects",
    ),
    "joined at every step": Fault(
        "room=self.capacity or max(end, 2 * past)", "room=self.capacity or end",
        "test_room_is_doubled",
    ),
    "what is given is kept": Fault(
        "copy[:, :, :length] = x\n    return copy",
        "copy[:, :, :length] = x\n    return x if room == length and length else copy",
        "test_a_frozen_store_keeps_copies",
    ),
    "views are handed out": Fault(
        "return self._held[0].clone() if self._held else None",
        "return self._held[0] if self._held else None",
        "test_what_was_looked_at_stays_and_what_was_given_is_not_kept",
    ),
    "bytes of the room": Fault(
        "return sum(x.nbytes for x in self._held)",
        "return self.reserved_nbytes",
        "test_bytes_are_those_of_the_formula", {"causal": True, "d_v": 5},
    ),
    "keys counted twice": Fault(
        "n_kv_heads * (d_k + d_v) * bytes_per_element",
        "n_kv_heads * 2 * d_k * bytes_per_element",
        "test_bytes_are_those_of_the_formula", {"causal": True, "d_v": 5},
    ),
    "elements for bytes": Fault(
        "n_kv_heads * (d_k + d_v) * bytes_per_element", "n_kv_heads * (d_k + d_v)",
        "test_bytes_are_those_of_the_formula", {"causal": True, "d_v": 4},
    ),
    "values stay behind": Fault(
        "self._hold(key[index], value[index], self._keys.shape[-2])",
        "self._hold(key[index], value[: len(index)], self._keys.shape[-2])",
        "test_rows_move_to_more_or_fewer", {"rows": [1, 0], "kind": "list"},
    ),
    "gradients are cut in silence": Fault(
        "if new.requires_grad:", "if False:",
        "test_a_store_is_no_place_for_gradients", {"which": 0},
    ),
    "dtypes are converted": Fault(
        "if (new.dtype, new.device) != (old.dtype, old.device):", "if False:",
        "test_what_does_not_fit_is_refused_and_changes_nothing",
        {"change": {"dtype": torch.float32}, "error": TypeError},
    ),
    "one row for many": Fault(
        "if new.shape[:2] != old.shape[:2] or new.shape[-1] != old.shape[-1]:",
        "if False:",
        "test_what_does_not_fit_is_refused_and_changes_nothing",
        {"change": {"batch": 1}, "error": ValueError},
    ),
    "an empty crop keeps its room": Fault(
        "        self._length = n\n        if n == 0:\n            self.reset()",
        "        self._length = n",
        "test_a_store_that_forgot_takes_anything", {"forget": "crop"},
    ),
    "bound to inference mode": Fault(
        "with torch.inference_mode(False):", "if True:",
        "test_inference_mode_and_others_may_alternate",
    ),
    "the source at every step": Fault(
        "        if self._keys is None:\n            key, value = project()",
        "        if True:\n            key, value = project()",
        "test_a_source_is_projected_once",
    ),
    "an old source": Fault(
        "if not torch.equal(source, before):", "if False:",
        "test_another_source_is_refused_until_the_cache_is_reset", {"n_layers": 1},
    ),
    "an old source of another size": Fault(
        "if len(came) != rows or came is not query and came.shape[1] != length:",
        "if len(came) != rows:",
        "test_a_moved_source_is_taken_on_trust_but_not_in_another_size",
    ),
    "a source out of order": Fault(
        "        super().reorder(rows)\n        self._sources = ()",
        "        self._sources = ()",
        "test_reordered_rows_go_on_as_themselves", {"kind": {}, "rows": [2, 0, 1]},
    ),
    "the source outlives a reset": Fault(
        "        for store in self._stores():\n            store.reset()",
        "        for layer in self.layers:\n            layer.self_attention.reset()",
        "test_a_cache_serves_one_sequence_after_another",
    ),
    "padding of the past is forgotten": Fault(
        "everything[:, None, None, :]",
        "torch.cat((everything[:, :past] | True, is_token), 1)[:, None, None, :]",
        "test_cached_equals_plain_at_every_split", PLAIN,
    ),
    "padding is looked for in the new tokens only": Fault(
        "unless_idle(everything[:, None, None, :])",
        "None if is_token.all() else everything[:, None, None, :]",
        "test_cached_equals_plain_at_every_split", PLAIN,
    ),
    "positions start again": Fault(
        "positions = count_positions(everything)[:, past:]",
        "positions = count_positions(is_token)",
        "test_cached_equals_plain_at_every_split", PLAIN,
    ),
    "positions count padding": Fault(
        "positions = count_positions(everything)[:, past:]",
        "positions = count_positions(everything | True)[:, past:]",
        "test_cached_equals_plain_at_every_split", PLAIN,
    ),
    "padding stays behind": Fault(
        "self._is_token = self._is_token[index]",
        "self._is_token = self._is_token[: len(index)]",
        "test_reordered_rows_go_on_as_themselves", {"kind": {}, "rows": [2, 0, 1]},
    ),
    "a failed step counts": Fault(
        "return begun if complete else self._past", "return begun",
        "test_a_step_that_fails_anywhere_is_as_if_it_had_not_begun",
        {"n_layers": 2, "start": 3, "failing": test_caches.failing_attentions},
    ),
    "the last attention is not asked": Fault(
        "len(layer.self_attention) == begun and layer.cross_attention.answered",
        "len(layer.self_attention) == begun",
        "test_a_step_that_fails_anywhere_is_as_if_it_had_not_begun",
        {"n_layers": 1, "start": 3, "failing": test_caches.failing_attentions},
    ),
    "what a failed step left stays": Fault(
        "self.crop(past)  # what a step that failed has left behind", "pass",
        "test_a_step_that_fails_anywhere_is_as_if_it_had_not_begun",
        {"n_layers": 2, "start": 3, "failing": test_caches.failing_attentions},
    ),
    "one store for all layers": Fault(
        "self.layers = [LayerCache(make(), FrozenKVCache()) for _ in range(n_layers)]",
        "self.layers = [LayerCache(make(), FrozenKVCache())] * n_layers; n_layers = 1",
        "test_each_layer_has_its_own_store",
    ),
    "a crop of the first layer": Fault(
        "in self.layers:\n            layer.self_attention.crop(n)",
        "in self.layers[:1]:\n            layer.self_attention.crop(n)",
        "test_going_back_in_a_decoder", {"n": 3},
    ),
}  # fmt: skip


def with_line(fault: Fault, line: str) -> types.ModuleType:
    """The module with ``line`` where the right one stands."""
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(fault.right) >= 1, f"{fault.right!r} stands there no more"
    module = types.ModuleType("aiayn.kv_cache")
    module.__package__ = "aiayn"
    exec(compile(source.replace(fault.right, line), "planted", "exec"), vars(module))
    return module


def noticed(fault: Fault, line: str, monkeypatch) -> None:
    """Call the test with what the module holds when ``line`` stands in it."""
    module = with_line(fault, line)
    for tests in (test_caches, test_kv_cache):
        for name in ("DecoderCache", "FrozenKVCache", "KVCache", "kv_cache_bytes"):
            if hasattr(tests, name):
                monkeypatch.setattr(tests, name, getattr(module, name))
    home = test_caches if hasattr(test_caches, fault.test) else test_kv_cache
    test, case = getattr(home, fault.test), dict(fault.case)
    if "make" in inspect.signature(test).parameters:
        case["make"] = module.KVCache
    test(**case)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_suite_notices(fault, no_shape_checks, monkeypatch):
    noticed(fault, fault.right, monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        noticed(fault, fault.wrong, monkeypatch)
    assert not isinstance(caught.value, (NameError, SyntaxError)), caught.value
