"""Faults of sub-layers and model, planted one by one: a named test has to notice each.

As in test_planted.py a line of a module is replaced, but in memory: the module is
executed anew with the fault in it, what it defines takes the place of the original
everywhere, and one test is called. That costs milliseconds, so that every kind of
fault can stand here.
"""

import importlib
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import test_caches
import test_model_state
import test_sublayers
import test_transformer

import aiayn

PACKAGE, TESTS = Path(aiayn.__file__).parent, Path(test_transformer.__file__).parent
FILES = {"sublayers": test_sublayers, "transformer": test_transformer,
         "model_state": test_model_state, "caches": test_caches}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is replaced in a module, and the call of a test that must fail by it."""

    module: str
    right: str
    wrong: str
    test: str
    case: dict = field(default_factory=dict)
    error: type = AssertionError


def norm(formula: str) -> str:
    """A layer norm that computes something else."""
    return (
        'self.norm = type("Norm", (nn.LayerNorm,), '
        f'{{"forward": lambda self, x: {formula} * self.weight + self.bias}})(d_model)'
    )


SUBLAYERS, TRANSFORMER = "sublayers", "transformer"
ROOT = " * math.sqrt(self.weight.shape[1])"
NORM = "self.norm = nn.LayerNorm(d_model)"
POST = "return self.norm(residual(x, self.dropout(sublayer(x))))"
PRE = "return residual(x, self.dropout(sublayer(self.norm(x))))"
FEED_FORWARD = "return self.outer(F.relu(self.inner(x)))"
SOURCE_IN = "x = self.source_positions(self.source_embedding(source), positions)"
TARGET_IN = "x = self.target_positions(self.target_embedding(target), positions)"
DROPPED = "\n            x = self.dropout(x)\n"
LOOK_BACK = "self.self_attention(x, x, x, target_mask, causal=True, cache=past)"
LOOK_ACROSS = "self.cross_attention(x, memory, memory, source_mask, cache=source)"
ENCODE = "x = layer(x, mask)\n        return self.encoder_norm(x)"
DECODE = "x = layer(x, memory, target_mask, source_mask, cache=store)"
LOGITS = "return F.linear(self.decoder_norm(x), self.output_weight)"
FINAL = "final = nn.LayerNorm if config.norm_first else lambda width: nn.Identity()"
OUTPUT = "(self.target_embedding if tied else self.output_projection).weight"
COUNT = "return (is_token.cumsum(dim=-1) - 1).clamp(min=0)"
DRAWN = "        self.reset_parameters(generator)\n\n    @property"
PLAIN, PRE_NORM = {"changes": {}}, {"changes": {"norm_first": True}}
UNTIED = {"changes": {"tie_embeddings": False}}
NO_BIAS = {"changes": {"bias": False}}
LEFT = PLAIN | {"left": True}
MISFIT = (
    "model_state"
    "::test_names_and_shapes_that_do_not_fit_are_refused_before_any_is_copied"
)
LOADED = PLAIN | {"assign": False, "wrap": test_model_state.WRAPPERS["parallel"]}

FAULTS = {
    # feed-forward
    "no ReLU": Fault(
        SUBLAYERS, FEED_FORWARD, "return self.outer(self.inner(x))",
        "sublayers::test_feed_forward_by_hand", {"bias": True},
    ),
    "ReLU at the end": Fault(
        SUBLAYERS, FEED_FORWARD, "return F.relu(self.outer(self.inner(x)))",
        "sublayers::test_feed_forward_by_hand", {"bias": False},
    ),
    "another nonlinearity": Fault(
        SUBLAYERS, FEED_FORWARD, "return self.outer(F.gelu(self.inner(x)))",
        "sublayers::test_feed_forward_by_hand", {"bias": True},
    ),
    "a bias in spite of bias=False": Fault(
        SUBLAYERS, "self.outer = nn.Linear(d_ff, d_model, bias=bias)",
        "self.outer = nn.Linear(d_ff, d_model)",
        "transformer::test_parameter_count_counts_a_model", NO_BIAS,
    ),
    # layer norm: annotated-transformer#119, allennlp#953
    "unbiased standard deviation": Fault(
        SUBLAYERS, NORM,
        norm("(x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + self.eps).sqrt()"),
        "sublayers::test_norm_divides_by_the_biased_standard_deviation",
    ),
    "eps outside the root": Fault(
        SUBLAYERS, NORM,
        norm("(x - x.mean(-1, True)) / "
             "(x.var(-1, keepdim=True, correction=0).sqrt() + self.eps)"),
        "sublayers::test_a_constant_vector_has_norm_zero_and_finite_gradient",
    ),
    "no mean taken off": Fault(
        SUBLAYERS, NORM, norm("x / (x.square().mean(-1, True) + self.eps).sqrt()"),
        "sublayers::test_post_norm_by_hand",
    ),
    "normalised over time": Fault(
        SUBLAYERS, NORM,
        norm("(x - x.mean(-2, True)) / "
             "(x.var(-2, keepdim=True, correction=0) + self.eps).sqrt()"),
        "transformer::test_no_logit_depends_on_a_later_target", PLAIN,
    ),
    "a smaller eps": Fault(
        SUBLAYERS, NORM, "self.norm = nn.LayerNorm(d_model, eps=1e-6)",
        "model_state::test_the_norms_are_over_one_token",
    ),
    "a norm without weights": Fault(
        SUBLAYERS, NORM, "self.norm = nn.LayerNorm(d_model, elementwise_affine=False)",
        "transformer::test_parameter_count_counts_a_model", PLAIN,
    ),
    # residual, dropout, and where the norm stands: annotated-transformer#13
    "pre-norm is post-norm": Fault(
        SUBLAYERS, "if self.norm_first:", "if False:",
        "sublayers::test_pre_norm_by_hand",
    ),
    "post-norm is pre-norm": Fault(
        SUBLAYERS, "if self.norm_first:", "if True:",
        "sublayers::test_post_norm_by_hand",
    ),
    "the switch stays behind": Fault(
        TRANSFORMER, "config.dropout, norm_first=config.norm_first)", "config.dropout)",
        "transformer::test_encoder_layer_by_hand", {"norm_first": True},
    ),
    "norm inside the residual": Fault(
        SUBLAYERS, POST, "return residual(x, self.norm(self.dropout(sublayer(x))))",
        "sublayers::test_post_norm_by_hand",
    ),
    "the residual is the normalised x": Fault(
        SUBLAYERS, PRE,
        "x = self.norm(x)\n            return residual(x, self.dropout(sublayer(x)))",
        "sublayers::test_pre_norm_by_hand",
    ),
    "no residual": Fault(
        SUBLAYERS, POST, "return self.norm(self.dropout(sublayer(x)))",
        "sublayers::test_post_norm_by_hand",
    ),
    "no residual, pre-norm": Fault(
        SUBLAYERS, PRE, "return self.dropout(sublayer(self.norm(x)))",
        "sublayers::test_pre_norm_by_hand",
    ),
    "a residual without its gradient": Fault(
        SUBLAYERS, "return x + change", "return x.detach() + change",
        "model_state::test_the_gradient_goes_past_every_sublayer", {"norm_first": True},
    ),
    "dropout on the residual": Fault(
        SUBLAYERS, POST, "return self.norm(self.dropout(residual(x, sublayer(x))))",
        "sublayers::test_dropping_everything_leaves_the_residual",
        {"norm_first": False},
    ),
    "dropout on the residual, pre-norm": Fault(
        SUBLAYERS, PRE, "return self.dropout(residual(x, sublayer(self.norm(x))))",
        "sublayers::test_dropout_scales_what_it_keeps_and_never_drops_the_residual",
    ),
    "dropout in evaluation": Fault(
        SUBLAYERS, POST,
        "return self.norm(residual(x, F.dropout(sublayer(x), self.dropout.p)))",
        "sublayers::test_dropout_acts_on_the_sublayer_and_only_in_training",
        {"norm_first": False},
    ),
    "no dropout on the target's embeddings": Fault(
        TRANSFORMER, TARGET_IN + DROPPED, TARGET_IN + "\n",
        "transformer::test_dropout_is_on_embeddings_and_every_sublayer",
    ),
    # embeddings: tutorials#2849, OpenNMT-py#1722
    "no √d_model": Fault(
        SUBLAYERS, ROOT, "", "sublayers::test_embedding_is_scaled_on_the_way_in",
    ),
    "divided by √d_model": Fault(
        SUBLAYERS, ROOT, ROOT.replace("*", "/", 1),
        "transformer::test_embeddings_are_scaled_before_positions_are_added",
    ),
    "√d_model after the positions": Fault(
        TRANSFORMER, SOURCE_IN,
        "scale = self.config.d_model**0.5\n        x = scale * self.source_positions("
        "self.source_embedding(source) / scale, positions)",
        "transformer::test_embeddings_are_scaled_before_positions_are_added",
    ),
    "√d_model on the way out too": Fault(
        TRANSFORMER, LOGITS, LOGITS + " / self.config.d_model**0.5",
        "transformer::test_logits_of_a_tied_model_are_not_scaled",
    ),
    "embeddings of another size": Fault(
        SUBLAYERS, "d_model**-0.5 if std is None", "1.0 if std is None",
        "transformer::test_initial_weights_are_as_the_conventions_say",
    ),
    "the row of padding is frozen": Fault(
        SUBLAYERS, "F.embedding(tokens.long(), self.weight)",
        "F.embedding(tokens.long(), self.weight, padding_idx=0)",
        "sublayers::test_the_embedding_of_padding_is_trained_like_any_other_until"
        "_masked",
    ),
    "the target is looked up in the source's table": Fault(
        TRANSFORMER, "self.target_embedding(target)", "self.source_embedding(target)",
        "transformer::test_model_by_hand", {"kind": "untied"},
    ),
    # positions: fairseq#1177
    "positions from the raw index": Fault(
        TRANSFORMER, COUNT,
        "return torch.arange(is_token.shape[1]).expand(is_token.shape)",
        "transformer::test_padding_and_neighbours_change_nothing", LEFT,
    ),
    "positions from one": Fault(
        TRANSFORMER, COUNT, "return is_token.cumsum(dim=-1)",
        "transformer::test_the_first_token_has_position_zero", {"pad_id": 0},
    ),
    "no positions in the decoder": Fault(
        TRANSFORMER, TARGET_IN, "x = self.target_embedding(target)",
        "transformer::test_model_by_hand", {"kind": "post-norm"},
    ),
    "the sinusoids are weights": Fault(
        TRANSFORMER, " if learned else PositionalEncoding", "",
        "model_state::test_sinusoids_are_never_weights",
        {"positions": "sinusoidal", "norm_first": False},
    ),
    "learned positions shared by both sides": Fault(
        TRANSFORMER, "self.target_positions = build_positions(config)",
        "self.target_positions = self.source_positions",
        "model_state::test_learned_positions_are_weights_of_their_side_and_length",
    ),
    # which mask goes where: SeekDeeper#3, keras-io#1046, torchtune#959
    "cross-attention with the target's mask": Fault(
        TRANSFORMER, LOOK_ACROSS, LOOK_ACROSS.replace("source_mask", "target_mask"),
        "transformer::test_decoder_layer_by_hand", {"norm_first": False},
        Exception,  # lengths differ
    ),
    "cross-attention without a mask": Fault(
        TRANSFORMER, LOOK_ACROSS, LOOK_ACROSS.replace("source_mask", "None"),
        "transformer::test_padding_and_neighbours_change_nothing",
        PLAIN | {"left": False},
    ),
    "cross-attention to the target": Fault(
        TRANSFORMER, LOOK_ACROSS, "self.cross_attention(x, x, x, None)",
        "transformer::test_every_source_token_reaches_every_logit", PLAIN,
    ),
    "no causal flag": Fault(
        TRANSFORMER, LOOK_BACK, LOOK_BACK.replace("causal=True, ", ""),
        "transformer::test_no_logit_depends_on_a_later_target", PLAIN,
    ),
    "causal in training only": Fault(
        TRANSFORMER, LOOK_BACK, LOOK_BACK.replace("True", "self.training"),
        "transformer::test_a_decoder_layer_looks_back_only_whatever_masks_it_gets",
        {"norm_first": False},
    ),
    "the target's padding is read": Fault(
        TRANSFORMER, LOOK_BACK, LOOK_BACK.replace("target_mask", "None"),
        "transformer::test_padding_and_neighbours_change_nothing", LEFT,
    ),
    "the source's padding is read": Fault(
        TRANSFORMER, "self.self_attention(x, x, x, mask)",
        "self.self_attention(x, x, x)",
        "transformer::test_encoder_layer_by_hand", {"norm_first": False},
    ),
    # stacks: espnet#1278
    "memory from the first layer": Fault(
        TRANSFORMER, ENCODE,
        "x = layer(x, mask)\n            if layer is self.encoder_layers[0]:\n"
        "                first = x\n        return self.encoder_norm(first)",
        "model_state::test_the_memory_is_what_the_last_encoder_layer_made", PLAIN,
    ),
    "every decoder layer reads the embedding": Fault(
        TRANSFORMER, DECODE, DECODE.replace("x = ", "y = ", 1)
        + "\n            x = y",
        "model_state::test_every_layer_runs_once_and_in_order", PLAIN,
    ),
    "one layer runs N times": Fault(
        TRANSFORMER, DECODE, DECODE.replace("layer(", "self.decoder_layers[0](", 1),
        "model_state::test_every_layer_runs_once_and_in_order", PLAIN,
    ),
    "a step that failed stays in the cache": Fault(
        TRANSFORMER, "            cache.crop(past)\n", "            pass\n",
        "caches::test_a_step_that_fails_anywhere_is_as_if_it_had_not_begun",
        {"make": aiayn.KVCache, "n_layers": 1, "start": 3,
         "failing": test_caches.failing_modules},
    ),
    "padding is overlooked": Fault(
        TRANSFORMER, "or not mask.all()", "or not mask.any()",
        "caches::test_cached_equals_plain_at_every_split",
        {"make": aiayn.KVCache, "kind": {}, "left": True},
    ),
    "the last row by -1": Fault(
        "tokens", "((index < 0) | (index >= batch)).any()", "(index >= batch).any()",
        "caches::test_rows_that_are_none_are_refused",
        {"make": aiayn.KVCache, "rows": [-1], "error": ValueError},
        error=pytest.fail.Exception,
    ),
    "a final norm after post-norm": Fault(
        TRANSFORMER, FINAL, "final = nn.LayerNorm",
        "model_state::test_the_norms_are_over_one_token",
    ),
    "no final norm after pre-norm": Fault(
        TRANSFORMER, FINAL, "final = lambda width: nn.Identity()",
        "transformer::test_model_by_hand", {"kind": "pre-norm"}, AttributeError,
    ),
    "the memory is not normalised": Fault(
        TRANSFORMER, ENCODE, ENCODE.replace("self.encoder_norm(x)", "x"),
        "transformer::test_model_by_hand", {"kind": "pre-norm"},
    ),
    # how it starts: pytorch#72253, #86274
    "layers start as clones": Fault(
        TRANSFORMER, DRAWN, DRAWN.replace(
            "\n\n", "\n        for layer in self.decoder_layers[1:]:\n"
            "            layer.load_state_dict(self.decoder_layers[0].state_dict())"
            "\n\n",
            1,
        ),
        "model_state::test_no_two_matrices_start_equal", PLAIN | {"again": False},
    ),
    "every matrix from one seed": Fault(
        TRANSFORMER, "draw_into(module.weight, nn.init.xavier_uniform_, generator)",
        "draw_into(module.weight, nn.init.xavier_uniform_, "
        "torch.Generator().manual_seed(0))",
        "model_state::test_no_two_matrices_start_equal", PLAIN | {"again": True},
    ),
    "the generator is not used": Fault(
        TRANSFORMER, "initialise(self, generator)", "initialise(self)",
        "transformer::test_a_seed_is_a_model_and_the_global_generator_is_left_alone",
        PLAIN,
    ),
    "the embeddings do not use the generator": Fault(
        TRANSFORMER, "module.reset_parameters(generator)", "module.reset_parameters()",
        "model_state::test_every_generator_draws_its_own_model", PLAIN,
    ),
    "normal in place of uniform": Fault(
        TRANSFORMER, "nn.init.xavier_uniform_", "nn.init.xavier_normal_",
        "transformer::test_initial_weights_are_as_the_conventions_say",
    ),
    # one matrix in three places: annotated-transformer#93, sockeye#137, nematus#117
    "a tie that copies": Fault(
        TRANSFORMER, "return source, source, None",
        'return source, __import__("copy").deepcopy(source), None',
        "model_state::test_a_tied_model_has_two_matrices_less", {"name": "post-norm"},
    ),
    "a tie that is never made": Fault(
        TRANSFORMER, "    if config.tie_embeddings:\n        return source, source",
        "    if False:\n        return source, source",
        "transformer::test_tied_is_one_matrix",
    ),
    "a tie without a gradient": Fault(
        TRANSFORMER, OUTPUT, OUTPUT.replace(".weight", ".weight.detach()"),
        "transformer::test_tied_gradient_is_the_sum_of_three", {}, Exception,
    ),
    "an untied output reads the source's table": Fault(
        TRANSFORMER, OUTPUT, OUTPUT.replace("output_projection", "source_embedding"),
        "transformer::test_model_by_hand", {"kind": "untied"},
    ),
    # saving and loading: nanoGPT#325, safetensors#98
    "a wrapper's prefix stays": Fault(
        TRANSFORMER, "state = plain_names(state_dict)", "state = state_dict",
        "model_state::test_what_a_wrapper_saved_loads_into_the_plain_model",
        LOADED, ValueError,
    ),
    "what a compiled layer adds to a name stays": Fault(
        TRANSFORMER, 'n.replace("_orig_mod.", "")', 'n.removeprefix("_orig_mod.")',
        "model_state::test_layers_compiled_one_by_one_load_plainly",
        error=ValueError,
    ),
    "a prefix is taken off whatever the other names": Fault(
        TRANSFORMER, "while plain and all(", "while plain and any(", MISFIT,
        error=pytest.fail.Exception,
    ),
    "what fits is copied before an error": Fault(
        TRANSFORMER, "check_fit(self, state, strict=strict)", "pass", MISFIT,
        error=RuntimeError,
    ),
    "a tie inside another module is not checked": Fault(
        TRANSFORMER,
        "state = {name.removeprefix(prefix): state_dict[name] for name in mine}",
        "state = {}",
        "model_state::test_a_tie_is_checked_inside_another_module_too",
        {"assign": False}, RuntimeError,
    ),
    "the last of two matrices wins": Fault(
        TRANSFORMER, "if tied and not same_numbers(*embeddings):", "if False:",
        "model_state::test_two_matrices_cannot_be_loaded_into_a_tied_one",
        {"strict": True, "assign": False}, pytest.fail.Exception,
    ),
    "a checkpoint with NaN is refused": Fault(
        TRANSFORMER, "(a.eq(b) | (a.isnan() & b.isnan())).all()", "a.eq(b).all()",
        "model_state::test_two_equal_matrices_need_not_be_numbers", {}, ValueError,
    ),
    "almost equal is equal": Fault(
        TRANSFORMER, "(a.eq(b) | (a.isnan() & b.isnan())).all()",
        "torch.allclose(a, b)",
        "model_state::test_two_matrices_cannot_be_loaded_into_a_tied_one",
        {"strict": True, "assign": False}, pytest.fail.Exception,
    ),
    "an output of its own is dropped": Fault(
        TRANSFORMER, "if strict and tied and output_of_its_own:", "if False:",
        "model_state::test_a_surplus_output_is_refused_and_nothing_changed",
    ),
    "a tied state fills two of three matrices": Fault(
        TRANSFORMER, "if strict and not tied and not output_of_its_own:", "if False:",
        "model_state::test_a_tied_state_is_refused_by_an_untied_model",
        {"norm_first": False, "assign": False},
    ),
    # what comes out: annotated-transformer#105
    "log-probabilities": Fault(
        TRANSFORMER, LOGITS, LOGITS + ".log_softmax(-1)",
        "model_state::test_logits_mean_the_same_to_loss_and_search", PLAIN,
    ),
    "states in place of logits": Fault(
        TRANSFORMER, LOGITS, "return self.decoder_norm(x)",
        "model_state::test_logits_mean_the_same_to_loss_and_search", PLAIN,
    ),
    # counting
    "biases everywhere": Fault(
        TRANSFORMER, "bias=config.bias, attend=attend", "bias=True, attend=attend",
        "transformer::test_parameter_count_counts_a_model", NO_BIAS,
    ),
    "a bias forgotten in the count": Fault(
        TRANSFORMER, "bias * (h * d_k + keys + values + d)",
        "bias * (h * d_k + keys + values)",
        "transformer::test_parameter_count_counts_a_model", PLAIN,
    ),
    "gains counted, shifts not": Fault(
        TRANSFORMER, "norm = 2 * d\n", "norm = d\n",
        "transformer::test_parameter_count_counts_a_model", PLAIN,
    ),
    "final norms not counted": Fault(
        TRANSFORMER, "(2 * norm if config.norm_first else 0)", "0",
        "transformer::test_parameter_count_counts_a_model", PRE_NORM,
    ),
    "the output projection not counted": Fault(
        TRANSFORMER, "config.source_vocab_size + 2 * config.target_vocab_size",
        "config.source_vocab_size + config.target_vocab_size",
        "transformer::test_parameter_count_counts_a_model", UNTIED,
    ),
}  # fmt: skip


def plant(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what the module holds with the fault in it where the original stands."""
    path = PACKAGE / f"{fault.module}.py"
    source = path.read_text(encoding="utf-8")
    count = source.count(fault.right)
    assert count == 1, f"{fault.right!r} stands {count} times in {path.name}, not once"
    for public in aiayn.__all__:  # each is looked up once, and then kept
        getattr(aiayn, public, None)
    name = f"aiayn.{fault.module}"
    original = importlib.import_module(name)
    planted = types.ModuleType(name)
    planted.__package__ = "aiayn"
    code = compile(source.replace(fault.right, fault.wrong), path.name, "exec")
    exec(code, vars(planted))
    theirs = {
        id(old): getattr(planted, key)
        for key, old in vars(original).items()
        if getattr(old, "__module__", None) == name and hasattr(planted, key)
    }
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or not {PACKAGE, TESTS} & set(Path(file).parents):
            continue
        for key, value in list(vars(module).items()):
            if id(value) in theirs:
                monkeypatch.setattr(module, key, theirs[id(value)])


def call(fault: Fault) -> None:
    file, _, test = fault.test.partition("::")
    getattr(FILES[file], test)(**fault.case)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_named_test_notices(fault, no_shape_checks, monkeypatch):
    """It passes with the module planted as it is, and fails by an assertion."""
    with monkeypatch.context() as patch:
        plant(replace(fault, wrong=fault.right), patch)
        call(fault)
    with monkeypatch.context() as patch:
        plant(fault, patch)
        with pytest.raises(fault.error) as caught:
            call(fault)
    assert not isinstance(caught.value, NameError | SyntaxError), caught.value
