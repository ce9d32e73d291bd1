"""What users are told where CUDA cannot be used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

import pytest
from fake_cupy import Error, FakeCupy

import turnout as tn
from turnout.backends import clear
from turnout_cuda.diagnosis import find_devices, target_arch

SetVersion = Callable[[int], None]


def complaint() -> tuple[str, str]:
    with pytest.raises(tn.Unavailable) as caught:
        find_devices()
    return caught.value.reason, caught.value.fix


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cupy" else find_spec(name)
    )


def test_devices(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(13_000)
    first, second = find_devices()
    assert str(first) == "cuda:0"
    assert second.label == "GPU 1 (sm_90)"
    assert second.target.arch == "sm_90"
    assert second.target.lanes == 32
    assert second.target.options == ("nvrtc 13.0",)
    assert second.memory_bytes == 1 << 34
    assert first.target == second.target, "equal GPUs share their code"


@pytest.mark.parametrize(
    ("version", "extra"),
    [(0, "cuda13"), (12_040, "cuda12"), (13_000, "cuda13"), (14_010, "cuda13")],
)
def test_no_cupy(without_cupy: None, driver_version: SetVersion, version: int, extra: str) -> None:
    driver_version(version)
    reason, fix = complaint()
    assert "CuPy, through which CUDA is used, is not installed" in reason
    assert ("no NVIDIA driver" in reason) == (version == 0)
    assert f"pip install 'turnout[{extra}]'" in fix


def test_broken_cupy(monkeypatch: pytest.MonkeyPatch, driver_version: SetVersion) -> None:
    driver_version(13_000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "cupy.cuda", raising=False)
    reason, fix = complaint()
    assert reason.startswith("CuPy cannot be imported (")
    assert "turnout[cuda13]" in fix


def test_cupy_of_another_vendor(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(13_000)
    fake.cuda.runtime.is_hip = True
    assert complaint()[0] == "this CuPy is made for AMD's ROCm, not for CUDA"


def test_everything_missing_is_listed(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(0)
    fake.failures["ask NVRTC"] = [RuntimeError("libnvrtc.so.13 not found\nsearched everywhere")]
    reason, fix = complaint()
    assert "no NVIDIA driver" in reason
    assert "NVRTC, the compiler of CUDA 13, cannot be loaded (libnvrtc.so.13 not found)" in reason
    assert fix.startswith("(1) on a machine with an NVIDIA GPU, install NVIDIA's driver (https://")
    assert "--gpus all`; (2) python -m pip install 'nvidia-cuda-nvrtc==13.*'" in fix


def test_nvrtc_missing_on_cuda_12(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(12_040)
    fake.cuda.runtime.runtimeGetVersion = lambda: 12_090
    fake.failures["ask NVRTC"] = [RuntimeError("not found")]
    reason, fix = complaint()
    assert reason == "NVRTC, the compiler of CUDA 12, cannot be loaded (not found)"
    assert fix == "python -m pip install nvidia-cuda-nvrtc-cu12"


@pytest.mark.parametrize(("version", "has_other_way"), [(12_040, True), (11_080, False)])
def test_outdated_driver(
    fake: FakeCupy, driver_version: SetVersion, version: int, has_other_way: bool
) -> None:
    driver_version(version)
    fake.failures["count devices"] = [Error(35)]
    reason, fix = complaint()
    assert reason == (
        f"NVIDIA's driver is for CUDA {version // 1000}.{version % 1000 // 10}, this CuPy for "
        "CUDA 13"
    )
    assert "update NVIDIA's driver" in fix
    assert ("turnout[cuda12]" in fix) == has_other_way


def test_driver_without_gpu(
    fake: FakeCupy, driver_version: SetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver_version(13_000)
    fake.failures["count devices"] = [Error(100), Error(100)]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert complaint()[0] == "NVIDIA's driver is there, but no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    reason, fix = complaint()
    assert reason == "no GPU is visible with CUDA_VISIBLE_DEVICES='7'"
    assert fix.startswith("unset CUDA_VISIBLE_DEVICES")


def test_any_other_failure_of_the_driver(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(13_000)
    fake.failures["count devices"] = [Error(803, "system driver mismatch")]
    reason, fix = complaint()
    assert reason == "NVIDIA's driver cannot be used (system driver mismatch)"
    assert "nvidia-smi" in fix


def test_gpu_too_old_for_the_compiler(fake: FakeCupy, driver_version: SetVersion) -> None:
    driver_version(13_000)
    fake.cuda.runtime.getDeviceProperties = lambda ordinal: {
        **fake.properties(ordinal), "major": 7, "minor": 0
    }  # fmt: skip
    reason, fix = complaint()
    assert reason == (
        "NVRTC 13.0 compiles for sm_75 and newer; here are GPU 0 (sm_70), GPU 1 (sm_70)"
    )
    assert "turnout[cuda12]" in fix


def test_architectures() -> None:
    supported = (75, 80, 90)
    assert target_arch(90, supported) == "sm_90"
    assert target_arch(86, supported) == "compute_80", "code of the driver's translator"
    assert target_arch(121, supported) == "compute_90"
    assert target_arch(70, supported) == "sm_70", "refused by the compiler, which says so"


def test_doctor_shows_it_and_the_rest_works(without_cupy: None, driver_version: SetVersion) -> None:
    driver_version(0)
    clear()
    try:
        status = tn.backends()["cuda"]
        assert not status.available
        assert "CuPy" in status.reason
        assert "pip install 'turnout[cuda13]'" in status.fix
        with pytest.raises(tn.Unavailable, match="no NVIDIA driver"):
            tn.devices("cuda")
        assert [str(device) for device in tn.devices("reference")] == ["reference:0"]
    finally:
        clear()
