"""Bundles for GPUs that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Scalar
from turnout_cuda.compiler import load_nvrtc

OLDEST, NEWEST = min(load_nvrtc().getSupportedArchs()), max(load_nvrtc().getSupportedArchs())


@tn.kernel
def law(regime: Index, v: Scalar) -> Scalar:
    return tm.dispatch(regime, [v, v * v, tm.exp(v)], policy="segmented")


def entries(directory: Path, target: str) -> dict[str, dict[str, str]]:
    """What is in the folder of a target, by the file of each code without its digest."""
    index = json.loads((directory / target.replace(":", "-") / "index.json").read_text())
    return {Path(entry["file"]).name.rpartition("-")[0]: entry for entry in index.values()}


def test_machine_code_and_ptx_of_every_unit(tmp_path: Path) -> None:
    targets = [f"cuda:sm_{NEWEST}", f"cuda:compute_{OLDEST}"]
    bundle = tn.build([law], tmp_path, targets=targets)
    assert [a.name for a in bundle.artifacts] == ["law__k0", "law__k1", "law__k2", "law__cls"]
    for target in targets:
        found = entries(tmp_path, target)
        assert {"law__k0", "law__cls", "scatter_order3"} <= found.keys()
        for entry in found.values():
            code = (tmp_path / entry["file"]).read_bytes()
            if ":sm_" in target:
                assert code[:4] == b"\x7fELF"
            else:
                assert f".target sm_{OLDEST}".encode() in code
        stem = tmp_path / found["law__k2"]["file"].removesuffix(".code")
        assert "__global__" in stem.with_suffix(".cuda").read_text()
        assert ".visible .entry" in stem.with_suffix(".ptx").read_text()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    targets = [f"cuda:sm_{NEWEST}"]
    digests = {tn.build([law], tmp_path / name, targets=targets).digest for name in "ab"}
    assert len(digests) == 1


@pytest.mark.skipif(tn.backends()["cuda"].available, reason="there is a GPU")
def test_without_a_gpu_the_backend_alone_means_any_gpu(tmp_path: Path) -> None:
    tn.build([law], tmp_path, targets=["cuda"])
    entry = entries(tmp_path, "cuda")["law__k0"]
    assert f".target sm_{OLDEST}".encode() in (tmp_path / entry["file"]).read_bytes()


def test_unknown_architectures_are_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(tn.CompileError, match=rf"'banana' is no architecture; .*sm_{NEWEST}"):
        tn.build([law], tmp_path / "b", targets=["cuda:banana"])
    with pytest.raises(tn.CompileError, match=rf"no code for sm_10, only for .*sm_{NEWEST}"):
        tn.build([law], tmp_path / "b", targets=["cuda:sm_10"])
    assert not (tmp_path / "b").exists()


def test_a_bundle_for_gpus_has_no_code_for_processors(tmp_path: Path) -> None:
    tn.build([law], tmp_path, targets=[f"cuda:sm_{NEWEST}"])
    with pytest.raises(
        tn.BundleError, match=rf"no code for reference:0; .* the targets 'cuda:sm_{NEWEST}'"
    ):
        tn.load(tmp_path, "law", device="reference")


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["cuda", f"cuda:compute_{OLDEST}"])
def test_a_loaded_kernel_gives_the_bits_of_the_original(tmp_path: Path, target: str) -> None:
    import numpy as np

    tn.build([law], tmp_path, targets=[target])
    regime, v = np.arange(10_000) % 5 - 1, np.linspace(-3.0, 3.0, 10_000)
    given = [tn.array(x, device="cuda") for x in (regime, v)]
    loaded = tn.load(tmp_path, "law", device="cuda")
    assert tn.to_numpy(loaded(*given)).tobytes() == tn.to_numpy(law(*given)).tobytes()
