"""Ten classic one-line faults, each planted in a copy: a named test has to go red.

They are what people publish by mistake; a suite that misses one proves nothing.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """One line of a module, what it becomes, and the test that must notice."""

    module: str
    right: str
    wrong: str
    test: str


FAULTS = {
    "no scale": Fault(
        "scaled_dot_product",
        "scale = query.shape[-1] ** -0.5 if scale is None else scale",
        "scale = 1.0 if scale is None else scale",
        "test_scaled_dot_product.py::test_weights_by_hand",
    ),
    "a fill of -1e9": Fault(
        "scaled_dot_product",
        ".masked_fill(~(mask | blind), -math.inf)",
        ".masked_fill(~(mask | blind), -1e9)",
        "test_scaled_dot_product.py::test_a_hidden_key_has_weight_zero_in_every_dtype",
    ),
    "causal from the upper left": Fault(
        "scaled_dot_product",
        " + (n_keys - n_queries)",
        "",
        "test_scaled_dot_product.py::test_causal_mask_by_its_definition",
    ),
    "view instead of transpose": Fault(
        "multi_head",
        "return cut.transpose(1, 2)",
        "return x.reshape(x.shape[0], n_heads, x.shape[1], -1)",
        "test_multi_head.py::test_heads_are_cut_from_the_width",
    ),
    "softmax over the queries": Fault(
        "scaled_dot_product",
        "return scores.softmax(dim=-1)\n",
        "return scores.softmax(dim=-2)\n",
        "test_scaled_dot_product.py::test_weights_along_rows_not_columns",
    ),
    "positions along the batch": Fault(
        "positional_encoding",
        "torch.arange(x.shape[1], device=x.device).unsqueeze(0)",
        "torch.arange(x.shape[0]).unsqueeze(-1).expand(x.shape[:2])",
        "test_positional_encoding.py"
        "::test_positions_run_along_the_sequence_and_not_the_batch",
    ),
    "target not shifted": Fault(
        "training",
        "return target[:, :-1], target[:, 1:]",
        "return target[:, :-1], target[:, :-1]",
        "test_training.py::test_repeating_what_was_read_is_no_answer",
    ),
    "mask in training only": Fault(
        "transformer",
        "x = layer(x, mask)",
        "x = layer(x, mask if self.training else None)",
        "test_transformer.py::test_the_mask_acts_in_training_too",
    ),
    "d_model for d_k": Fault(
        "multi_head",
        "return self.attend(query, key, value, mask, causal=causal)",
        "return self.attend(query, key, value, mask, causal=causal, "
        "scale=self.query_projection.in_features**-0.5)",
        "test_multi_head.py::test_scores_are_scaled_by_the_width_of_a_head",
    ),
    "shared layers": Fault(
        "transformer",
        "EncoderLayer(config, **seams) for _ in layers",
        "[EncoderLayer(config, **seams)] * len(layers)",
        "test_transformer.py::test_layers_are_their_own",
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Package and tests in a folder of their own, where a fault may be planted."""
    shutil.copytree(ROOT / "src" / "aiayn", tmp_path / "aiayn")
    (tmp_path / "tests").mkdir()
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run_tests(root: Path, *tests: str) -> tuple[int, str]:
    """Pytest's exit status and output, with the package of ``root``."""
    own = ("PYTEST_", "COV_", "COVERAGE_")  # nothing of the run that we are in
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "--tb=line",
            "-p",
            "no:cacheprovider",
        ]
        + [f"tests/{test}" for test in tests],
        cwd=root,
        env=environment | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


def plant(root: Path, fault: Fault) -> None:
    path = root / "aiayn" / f"{fault.module}.py"
    source = path.read_text(encoding="utf-8")
    count = source.count(fault.right)
    assert count == 1, f"{fault.right!r} stands {count} times in {path.name}, not once"
    path.write_text(source.replace(fault.right, fault.wrong), encoding="utf-8")


def test_without_a_fault_all_are_green(copy):
    status, output = run_tests(copy, *(fault.test for fault in FAULTS.values()))
    assert status == 0, output
    assert len(FAULTS) >= 10


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_turns_its_test_red(copy, fault):
    """Status 1: tests ran and failed. A test that cannot even be collected gives 2."""
    plant(copy, fault)
    status, output = run_tests(copy, fault.test)
    assert status == 1, f"{fault.test} did not notice:\n{output}"
    assert fault.test.partition("::")[2] in output


def test_a_line_that_is_gone_is_reported(copy):
    gone = Fault("training", "return target[1:], target[:-1]", "", "test_training.py")
    with pytest.raises(AssertionError, match="stands 0 times in training.py"):
        plant(copy, gone)
