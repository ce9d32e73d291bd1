"""Bundles: what is written, what is loaded, and every kind of damage."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f64, ir
from turnout.arguments import call_types
from turnout.backends import active
from turnout.bundle import read_bundle
from turnout.bundle_codec import FIELDS, read_lowered, write_lowered
from turnout.bundle_files import json_bytes
from turnout.conformance.kernels import CONFORMANCE_KERNELS
from turnout.digests import sha256
from turnout.lang import LoweredKernel

REFERENCE = ["reference"]


def law(policy):
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        force = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * force

    return drag


@tn.kernel
def by_speed(
    dt: Param, cut: Param, slow: Index, fast: Index, v: Mutable[Scalar], regime: Mutable[Index]
):
    v = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="auto")
    regime = tm.select(abs(v) > cut, fast, slow)


@tn.kernel
def doubled(x: Scalar) -> Scalar:
    return x * 2.0


@tn.kernel
def powers(n: Param, x: Scalar) -> Scalar:
    result = 1.0
    for _ in range(n):
        result = result * x
    return result


REGIME = np.array([0, 0, 1, 2, 2, 2, 1, 0, 5])
V = np.linspace(-1.0, 1.0, 9)
HALF = np.float32(0.5)


@pytest.fixture(autouse=True)
def on_reference():
    with tn.use("reference"):
        yield


@pytest.fixture
def built(tmp_path):
    """A bundle with two kernels, one of which has a dispatch."""
    return tn.build([law("switch"), doubled], tmp_path / "bundle", targets=REFERENCE)


# -- what is built ---------------------------------------------------------------------------------


def test_the_sidecar_of_an_open_dispatch_is_that_of_the_tutorial(tmp_path):
    bundle = tn.build([law("auto")], tmp_path / "b", targets=REFERENCE)
    (entry,) = bundle.artifacts[0].sidecar["dispatch"]
    assert entry == {
        "name": "dispatch0",
        "K": 3,
        "policy": "auto",
        "static_selector": True,
        "selector_reads": [["per_sample", "regime"]],
        "mix": "dispatch0_mix",
    }
    assert list(entry) == ["name", "K", "policy", "static_selector", "selector_reads", "mix"]


def test_a_selector_that_the_kernel_writes_is_not_static(tmp_path):
    bundle = tn.build([by_speed], tmp_path / "b", targets=REFERENCE)
    (entry,) = bundle.artifacts[0].sidecar["dispatch"]
    assert (entry["static_selector"], entry["selector_reads"]) == (False, [["mutable", "regime"]])


def test_the_sidecar_as_a_file_is_the_one_in_memory(tmp_path):
    kernels = [law("auto"), by_speed, doubled, tn.vjp(law("auto"), wrt=("v",))]
    bundle = tn.build(kernels, tmp_path / "b", targets=REFERENCE)
    for artifact in bundle.artifacts:
        assert json.loads(artifact.sidecar_path.read_text()) == artifact.sidecar
    assert bundle.artifacts == read_bundle(bundle.directory).artifacts


def test_a_sidecar_describes_arguments(tmp_path):
    @tn.kernel
    def moved(
        dt: Param,
        n: Param[tn.i32],
        place: Index,
        speed: Vector[3],
        table: NDArray[f64, 1],
        done: Terminated,
        x: Mutable[Scalar],
        kind: Mutable[Index],
    ):
        kind = place + n
        x = x + dt * speed[1] * table[tm.index(place, table.shape[0])]

    (artifact,) = tn.build([moved], tmp_path / "b", targets=REFERENCE).artifacts
    described = artifact.sidecar
    assert described["kernel"] == "moved"
    assert described["exec_targets"] == ["reference"]
    assert described["exec_access"] == "cross_sample_read"
    assert described["scalar_type"] == "float64"
    assert described["params"] == [
        {"name": "dt", "dtype": "float"},
        {"name": "n", "dtype": "int32"},
    ]
    assert described["per_sample"] == ["place"]
    assert described["vector_inputs"] == ["speed"]
    assert described["vec_widths"] == {"speed": 3}
    assert described["lookups"] == ["table"]
    assert described["terminated"] == "done"
    assert described["mutables"] == [
        {"name": "x", "dtype": "scalar", "width": 1, "prior": True},
        {"name": "kind", "dtype": "int64", "width": 1, "prior": False},
    ]
    assert described["arg_dtypes"]["done"] == "bool"
    assert ["terminated", "done"] in described["arg_spec"]
    assert described["digest"] == artifact.digest


def test_a_derivative_says_what_it_is_of(tmp_path):
    gradient = tn.vjp(law("auto"), wrt=("v",))
    (artifact,) = tn.build([gradient], tmp_path / "b", targets=REFERENCE).artifacts
    assert artifact.sidecar["derivative"] == {"kind": "vjp", "wrt": ["v"], "primal": "drag"}


def test_a_segmented_kernel_is_listed_as_its_units(tmp_path):
    split = tn.resolve_dispatch(law("auto"), {"dispatch0": "segmented"})
    bundle = tn.build([split], tmp_path / "b", targets=REFERENCE)
    assert [a.name for a in bundle.artifacts] == ["drag__k0", "drag__k1", "drag__k2", "drag__cls"]
    assert bundle.names == ("drag", *(a.name for a in bundle.artifacts))
    *branches, classify = (artifact.sidecar for artifact in bundle.artifacts)
    assert classify["dispatch"] == []
    for described in branches:
        (entry,) = described["dispatch"]
        assert entry["policy"] == "segmented"
        assert (entry["class"], entry["stale"]) == ("dispatch0_class", "dispatch0_stale")
        assert entry["units"] == ["drag__k0", "drag__k1", "drag__k2"]


def test_units_out_of_a_bundle_do_what_the_kernel_does(tmp_path):
    split = law("segmented")
    tn.build([split], tmp_path / "b", targets=REFERENCE)
    expected = np.zeros(9)
    split(0.1, REGIME, V, expected)

    classes = np.zeros(9, np.int64)
    tn.run(tn.load(tmp_path / "b", "drag__cls"), regime=REGIME, dispatch0_class=classes)
    assert classes.tolist() == [0, 0, 1, 2, 2, 2, 1, 0, 2]
    order = np.argsort(classes, kind="stable")
    found = np.zeros(9)
    for number in range(3):
        tn.run(
            tn.load(tmp_path / "b", f"drag__k{number}"),
            dt=0.1,
            v=V,
            v_new=found,
            dispatch0_offsets=np.array([0, 3, 5, 9]),
            dispatch0_order=order,
        )
    assert found.tobytes() == expected.tobytes()
    whole = np.zeros(9)
    tn.load(tmp_path / "b", "drag")(0.1, REGIME, V, whole)
    assert whole.tobytes() == expected.tobytes()


def test_the_same_input_gives_the_same_bytes(tmp_path):
    first = tn.build([law("auto"), doubled], tmp_path / "a", targets=REFERENCE)
    second = tn.build([law("auto"), doubled], tmp_path / "b", targets=REFERENCE)
    assert first.digest == second.digest
    for one, other in zip(first.files(), second.files(), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_units_of_a_kernel_that_returns_write_what_the_caller_gives(tmp_path):
    @tn.kernel
    def squared(regime: Index, v: Scalar) -> Scalar:
        return tm.dispatch(regime, [v, v * v], policy="segmented")

    tn.build([squared], tmp_path / "b", targets=REFERENCE)
    out = np.zeros(9)
    tn.run(
        tn.load(tmp_path / "b", "squared__k1"),
        v=V,
        returned0=out,
        dispatch0_offsets=np.array([0, 2, 9]),
    )
    assert out.tolist() == [0.0, 0.0, *(V[2:] ** 2)]
    assert tn.load(tmp_path / "b", "squared")(REGIME, V).tolist() == squared(REGIME, V).tolist()


def test_a_chosen_policy_is_as_a_declared_one(tmp_path):
    chosen = tn.resolve_dispatch(law("auto"), {"dispatch0": "switch"})
    digests = [
        tn.build([kernel], tmp_path / "b", targets=REFERENCE).artifacts[0].digest
        for kernel in (chosen, law("switch"), law("auto"))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_can_read_a_bundle(built):
    assert stat.S_IMODE(built.directory.stat().st_mode) == 0o700
    for file in built.files():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_bundle_is_replaced_as_a_whole(tmp_path):
    tn.build([law("switch"), doubled], tmp_path / "b", targets=REFERENCE)
    bundle = tn.build([doubled], tmp_path / "b", targets=REFERENCE)
    present = [path for path in bundle.directory.rglob("*") if path.is_file()]
    assert sorted(present) == sorted(bundle.files())
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


# -- calls -----------------------------------------------------------------------------------------


def test_a_loaded_kernel_is_called_like_the_original(tmp_path):
    tn.build([law("auto"), doubled], tmp_path / "b", targets=REFERENCE)
    loaded, out, expected = tn.load(tmp_path / "b", "drag"), np.zeros(9), np.zeros(9)
    law("auto")(0.1, REGIME, V, expected)
    loaded(0.1, REGIME, v_new=out, v=V)
    assert out.tobytes() == expected.tobytes()
    assert tn.load(tmp_path / "b", "doubled")(V).tolist() == (V * 2).tolist()
    assert repr(loaded) == repr(law("auto"))


def test_counters_count(tmp_path):
    tn.build([law("auto")], tmp_path / "b", targets=REFERENCE)
    mix = np.zeros(3, np.uint32)
    loaded = tn.load(tmp_path / "b", "drag")
    for _ in range(2):
        tn.run(loaded, dt=0.1, regime=REGIME, v=np.ones(9), v_new=np.zeros(9), dispatch0_mix=mix)
    assert mix.tolist() == [6, 4, 8]


def test_one_of_several_counters_may_be_given(tmp_path):
    @tn.kernel
    def two(first: Index, second: Index, x: Scalar) -> Scalar:
        return tm.dispatch(first, [x, -x]) + tm.dispatch(second, [x, 2.0 * x, 3.0 * x])

    tn.build([two], tmp_path / "b", targets=REFERENCE)
    mix = np.zeros(3, np.uint32)
    result = tn.load(tmp_path / "b", "two")(REGIME, REGIME, V, dispatch1_mix=mix)
    assert mix.tolist() == [3, 2, 4]
    assert result.tolist() == two(REGIME, REGIME, V).tolist()


def test_wrong_calls_are_refused_as_by_the_original(tmp_path):
    tn.build([law("auto")], tmp_path / "b", targets=REFERENCE)
    out = np.zeros(9)
    calls = [
        lambda kernel: kernel(0.1, REGIME, V),
        lambda kernel: kernel(0.1, REGIME, V, out, unknown=1),
        lambda kernel: kernel(0.1, REGIME.astype(float), V[:3], out),
        lambda kernel: kernel("x", REGIME, V, out),
        lambda kernel: kernel(0.1, REGIME, V, out, dispatch1_mix=np.zeros(3, np.uint32)),
        lambda kernel: kernel(0.1, REGIME, V, out, dispatch0_mix=np.zeros(2, np.uint32)),
        lambda kernel: kernel(0.1, REGIME, V, out, steps=-1),
    ]
    for call in calls:
        messages = []
        for kernel in (law("auto"), tn.load(tmp_path / "b", "drag")):
            with pytest.raises(tn.CallError) as caught:
                call(kernel)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_both_widths_can_be_built(tmp_path):
    tn.build([doubled], tmp_path / "b", targets=REFERENCE, dtype=["float32", "float64"])
    loaded = tn.load(tmp_path / "b", "doubled")
    for dtype in (np.float32, np.float64):
        assert loaded(np.ones(2, dtype)).dtype == dtype


def test_types_that_were_not_built_are_refused(tmp_path):
    tn.build([law("switch")], tmp_path / "b", targets=REFERENCE)
    single = V.astype(np.float32)
    with pytest.raises(
        tn.BundleError,
        match=r"kernel drag of .*b was not built for dt: float, regime: i64, v: f32, v_new: f32, "
        r"but for: dt: float, regime: i64, v: f64, v_new: f64\. Convert the arguments, or build it "
        "with dtype= and param_types=",
    ):
        tn.load(tmp_path / "b", "drag")(0.1, REGIME, single, np.zeros(9, np.float32))


def test_numbers_are_converted_to_what_was_built(tmp_path):
    tn.build([law("switch"), powers], tmp_path / "b", targets=REFERENCE)
    drag, out, expected = tn.load(tmp_path / "b", "drag"), np.zeros(9), np.zeros(9)
    law("switch")(1.0, REGIME, V, expected)
    for dt in (1, 1.0, np.float64(1), np.int8(1), True):
        drag(dt, REGIME, V, out)
        assert out.tobytes() == expected.tobytes()
    raised = tn.load(tmp_path / "b", "powers")
    for n in (2, np.int16(2)):
        assert raised(n, np.array([3.0])).tolist() == [9.0]
    with pytest.raises(tn.BundleError, match=r"not built for n: float, .*but for: n: int,"):
        raised(2.0, V)


def test_types_of_numbers_can_be_given(tmp_path):
    def built_type(**param_types):
        bundle = tn.build([powers], tmp_path / "b", targets=REFERENCE, param_types=param_types)
        return bundle.artifacts[0].sidecar["params"][0]["dtype"]

    assert built_type() == "int"
    assert built_type(n="i16") == "int16"
    assert built_type(**{"powers.n": "u8", "n": "i16"}) == "uint8"
    with pytest.raises(
        tn.BundleError, match="'i128' is no type of 'n'; allowed are int, float, f32"
    ):
        built_type(n="i128")
    with pytest.raises(tn.BundleError, match=r"no kernel has a scalar parameter 'm' .*: powers\.n"):
        built_type(m="int")


def test_defaults_are_kept(tmp_path):
    @tn.kernel
    def scaled(x: Scalar, a: Param = 3, b: Param = HALF, c: Param = float("inf")) -> Scalar:
        return tm.minimum(x * a + b, c)

    types = {"a": "int", "b": "f32"}
    tn.build([scaled], tmp_path / "b", targets=REFERENCE, param_types=types)
    loaded = tn.load(tmp_path / "b", "scaled")
    assert loaded(np.array([1.0, 2.0])).tolist() == [3.5, 6.5]
    assert loaded(np.array([1.0, 2.0]), c=4.0).tolist() == [3.5, 4.0]


def test_specialised_kernels_stay_so(tmp_path):
    @tn.kernel
    def scaled(a: NDArray[f64, 1], factor: Param, out: NDArray[f64, 1]):
        for i in range(a.shape[0]):
            out[i] = a[i] * factor

    special = scaled.specialise(a=(3,), factor=np.float32(2))
    tn.build([special], tmp_path / "b", targets=REFERENCE)
    loaded, out = tn.load(tmp_path / "b", "scaled"), np.zeros(3)
    assert loaded.sizes == special.sizes
    loaded(np.arange(3.0), out=out)
    assert out.tolist() == [0.0, 2.0, 4.0]
    for kernel in (special, loaded):
        with pytest.raises(tn.CallError, match=r"'a' has"):
            kernel(np.arange(4.0), out=np.zeros(4))


def test_debug_kernels_name_the_line(tmp_path):
    @tn.kernel(debug=True)
    def written(place: NDArray[tn.i64, 1], x: NDArray[f64, 1]) -> None:
        for i in range(place.shape[0]):
            x[place[i]] = 1.0

    tn.build([written], tmp_path / "b", targets=REFERENCE)
    loaded = tn.load(tmp_path / "b", "written")
    with pytest.raises(
        tn.OutOfBoundsError, match=r"kernel written, test_bundle\.py:\d+: index 3 is out of bounds"
    ):
        loaded(np.array([3]), np.zeros(3))


def test_what_needs_source_is_refused(tmp_path):
    tn.build([doubled], tmp_path / "b", targets=REFERENCE)
    loaded = tn.load(tmp_path / "b", "doubled")
    with pytest.raises(tn.KernelError, match=r"doubled was loaded from .* and has no source"):
        tn.vjp(loaded, wrt=("x",))(x=V, bar_out=V, bar_x=np.zeros(9))
    with pytest.raises(tn.KernelError, match="what is constant is compiled into its code"):
        loaded.with_constants(factor=2)
    with pytest.raises(tn.KernelError, match="what is constant is compiled into its code"):
        loaded.specialise(samples=3)
    with pytest.raises(tn.BundleError, match=r"was loaded from .*; build it where its source is"):
        tn.build([loaded], tmp_path / "c", targets=REFERENCE)


def test_policies_of_loaded_kernels_can_be_chosen(tmp_path):
    tn.build([law("auto")], tmp_path / "b", targets=REFERENCE)
    loaded, expected = tn.load(tmp_path / "b", "drag"), np.zeros(9)
    law("auto")(0.1, REGIME, V, expected)
    for policy in ("switch", "predicated", "segmented"):
        out = np.zeros(9)
        tn.resolve_dispatch(loaded, {"dispatch0": policy})(0.1, REGIME, V, out)
        assert out.tobytes() == expected.tobytes()


def test_loaded_kernels_can_be_pickled(tmp_path):
    tn.build([doubled], tmp_path / "b", targets=REFERENCE)
    loaded = pickle.loads(pickle.dumps(tn.load(tmp_path / "b", "doubled", device="reference")))
    assert loaded(np.ones(2)).tolist() == [2.0, 2.0]
    assert loaded.device == "reference"


def test_run_takes_kernels_only():
    assert tn.run(doubled, x=np.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(tn.CallError, match=r"turnout\.run takes a kernel, such as .* not 3"):
        tn.run(3)


# -- what cannot be built --------------------------------------------------------------------------


def refused(match: str, kernels, directory, **options):
    with pytest.raises(tn.BundleError, match=match):
        tn.build(kernels, directory, **{"targets": REFERENCE, **options})
    assert not directory.exists()


def test_other_things_than_kernels_are_refused(tmp_path):
    refused("takes a list of kernels, not <turnout.kernel doubled", doubled, tmp_path / "b")
    refused("the list of kernels is empty", [], tmp_path / "b")
    refused("takes kernels .* not 3", [3], tmp_path / "b")
    refused("two of the kernels would have the files of 'doubled'", [doubled] * 2, tmp_path / "b")


def test_unknown_targets_are_refused(tmp_path):
    for targets, message in {
        ("warp",): r"target 'warp': backend 'warp' is not installed.*; installed are: .*reference",
        ("a b",): r"'a b' is no target; give a backend, or .*'cuda:sm_90'\. Installed are",
        "cpu": "targets='cpu': give a list of targets",
        (): r"targets=\(\): give a list of targets",
    }.items():
        refused(message, [doubled], tmp_path / "b", targets=targets)


def test_unknown_widths_are_refused(tmp_path):
    for dtype in ("int64", int):
        message = r"dtype=.*int.*: give float32, float64, or a list"
        refused(message, [doubled], tmp_path / "b", dtype=dtype)


def test_other_folders_are_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep me")
    with pytest.raises(tn.BundleError, match="mine exists and holds no bundle; name a folder"):
        tn.build([doubled], folder, targets=REFERENCE)
    (folder / "manifest.json").write_text('{"name": "app"}')
    with pytest.raises(tn.BundleError, match=r"manifest\.json is not that of a bundle; name"):
        tn.build([doubled], folder, targets=REFERENCE)
    assert (folder / "notes.txt").read_text() == "keep me"
    with pytest.raises(tn.BundleError, match=r"notes\.txt exists and is no folder"):
        tn.build([doubled], folder / "notes.txt", targets=REFERENCE)


def test_files_of_others_in_a_bundle_are_not_lost(built):
    (built.directory / "notes.txt").write_text("keep me")
    with pytest.raises(tn.BundleError, match=r"notes\.txt is no file of the bundle there"):
        tn.build([doubled], built.directory, targets=REFERENCE)
    assert (built.directory / "notes.txt").read_text() == "keep me"


def test_a_folder_that_cannot_be_written_is_named(built, monkeypatch):
    before = {path: path.read_bytes() for path in built.files()}

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(tn.BundleError, match=r"cannot be written to .*bundle: no space left"):
        tn.build([doubled], built.directory, targets=REFERENCE)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in built.files()} == before
    assert [path.name for path in built.directory.parent.iterdir()] == ["bundle"]


# -- damage ----------------------------------------------------------------------------------------


def code_file(bundle: tn.Bundle) -> Path:
    return next(path for path in bundle.files() if path.suffix == ".code")


def changed_manifest(bundle: tn.Bundle, change) -> None:
    """Change a manifest as somebody would who knows how its digest is made."""
    manifest = json.loads(bundle.manifest_path.read_text())
    change(manifest)
    manifest["digest"] = ""
    manifest["digest"] = sha256(json_bytes(manifest)).hexdigest()
    bundle.manifest_path.write_bytes(json_bytes(manifest))


def renamed_file(manifest, name: str) -> None:
    first = next(iter(manifest["files"]))
    manifest["files"][name] = manifest["files"].pop(first)


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def linked(bundle: tn.Bundle) -> None:
    target = bundle.directory.parent / "elsewhere.code"
    shutil.move(code_file(bundle), target)
    code_file_path = bundle.directory / "reference" / "link.code"
    code_file_path.symlink_to(target)


DAMAGE = {
    "changed": (lambda b: flip(code_file(b)), r"\.code is not what was written: its SHA-256"),
    "truncated": (
        lambda b: code_file(b).write_bytes(code_file(b).read_bytes()[:-1]),
        r"\.code is truncated: it has \d+ bytes, and \d+ were written",
    ),
    "longer": (
        lambda b: code_file(b).write_bytes(code_file(b).read_bytes() + b" "),
        r"\.code is changed: it has \d+ bytes",
    ),
    "missing": (lambda b: code_file(b).unlink(), r"\.code does not exist, but belongs to it"),
    "no manifest": (lambda b: b.manifest_path.unlink(), r"manifest\.json does not exist"),
    "foreign": (
        lambda b: (b.directory / "extra.so").write_bytes(b"x"),
        r"extra\.so is not listed in manifest\.json",
    ),
    "foreign folder": (
        lambda b: ((b.directory / "more").mkdir(), (b.directory / "more/x.so").write_bytes(b"x")),
        r"more.x\.so is not listed in manifest\.json",
    ),
    "swapped": (
        lambda b: swap(b.artifacts[0].sidecar_path, b.artifacts[1].sidecar_path),
        r"(drag|doubled)\.json is (truncated|changed|not what was written)",
    ),
    "link": (linked, r"link\.code is a symbolic link"),
    "empty manifest": (lambda b: b.manifest_path.write_bytes(b""), r"manifest\.json holds no JSON"),
    "other manifest": (
        lambda b: b.manifest_path.write_text('{"name": "app"}'),
        r"manifest\.json is not the manifest of a bundle",
    ),
    "list as manifest": (
        lambda b: b.manifest_path.write_text("[1]"),
        r"manifest\.json is not the manifest of a bundle",
    ),
    "manifest edited": (
        lambda b: b.manifest_path.write_text(b.manifest_path.read_text().replace("drag", "drab")),
        r"manifest\.json is not what was written: its digest is wrong",
    ),
    "manifest reformatted": (
        lambda b: b.manifest_path.write_text(b.manifest_path.read_text() + "\n"),
        r"manifest\.json is not what was written: its digest is wrong",
    ),
    "other format": (
        lambda b: changed_manifest(b, lambda m: m.update(format="turnout bundle 99")),
        r"manifest\.json is of the format 'turnout bundle 99', and this turnout reads",
    ),
    "other version": (
        lambda b: changed_manifest(b, lambda m: m.update(turnout="0.0.1")),
        r"was built by turnout 0\.0\.1, and this is .*; build it again",
    ),
    "other backend": (
        lambda b: changed_manifest(
            b, lambda m: m["targets"]["reference"].update(built_by="turnout 0.0.1")
        ),
        r"target 'reference': built by turnout 0\.0\.1, and this is turnout ",
    ),
    "upwards": (
        lambda b: changed_manifest(b, lambda m: renamed_file(m, "../evil.code")),
        r"names the file '\.\./evil\.code', which cannot be in the folder",
    ),
    "absolute": (
        lambda b: changed_manifest(b, lambda m: renamed_file(m, "/etc/passwd")),
        r"names the file '/etc/passwd', which cannot be in the folder",
    ),
    "index elsewhere": (
        lambda b: changed_manifest(
            b, lambda m: m["targets"]["reference"].update(index="../index.json")
        ),
        r"index\.json: the manifest names no such file",
    ),
    "unknown entry": (
        lambda b: changed_manifest(
            b, lambda m: next(iter(m["files"].values())).update(bytes="many")
        ),
        r"manifest\.json describes '.*' in a way that is not known",
    ),
    "no targets": (
        lambda b: changed_manifest(b, lambda m: m.pop("targets")),
        "the manifest lists no kernels or no targets",
    ),
    "strange target": (
        lambda b: changed_manifest(b, lambda m: m["targets"].update(reference=3)),
        "the target 'reference' is described in an unknown way",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_with_the_name_of_the_file(built, kind):
    damage, message = DAMAGE[kind]
    damage(built)
    with pytest.raises(tn.BundleError, match=message) as caught:
        tn.load(built.directory, "drag")
    assert str(built.directory) in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("what", [".", "manifest.json", "reference", "drag.json"])
def test_a_bundle_that_others_may_write_to_is_refused(built, what):
    path = built.directory / what
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(tn.BundleError, match=r"other users may write to it .*chmod go-w") as caught:
        tn.load(built.directory, "drag")
    assert str(path) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_pipes_are_refused_without_waiting(built):
    os.mkfifo(built.directory / "pipe")
    with pytest.raises(tn.BundleError, match="pipe is no plain file; move it away"):
        tn.load(built.directory, "drag")


def test_what_is_not_there_is_said(tmp_path, built):
    with pytest.raises(tn.BundleError, match="nowhere does not exist; name the folder"):
        tn.load(tmp_path / "nowhere", "drag")
    with pytest.raises(tn.BundleError, match=r"manifest\.json is no folder; name the folder"):
        tn.load(built.manifest_path, "drag")
    with pytest.raises(tn.BundleError, match=r"holds no kernel 'drug'; it holds 'drag', 'doubled'"):
        tn.load(built.directory, "drug")


def test_a_device_without_code_is_refused(built):
    loaded = tn.load(built.directory, "doubled")
    loaded._chosen_codes.clear()
    loaded._codes[0].target = dataclasses.replace(loaded._codes[0].target, backend="cuda")
    with pytest.raises(
        tn.BundleError,
        match=r"kernel doubled of .* has no code for reference:0; it was built for the targets "
        r"'reference'. Build it for 'reference' too, or name a device",
    ):
        loaded(V)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_changed_byte_is_noticed(shared_bundle, data):
    path = data.draw(st.sampled_from(shared_bundle.files()))
    before = path.read_bytes()
    place = data.draw(st.integers(0, len(before) - 1))
    bit = data.draw(st.integers(1, 255))
    changed = bytearray(before)
    changed[place] ^= bit
    try:
        path.write_bytes(changed)
        with pytest.raises(tn.BundleError):
            tn.load(shared_bundle.directory, "drag")
    finally:
        path.write_bytes(before)


@pytest.fixture(scope="module")
def shared_bundle(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shared") / "bundle"
    return tn.build([law("auto"), doubled], directory, targets=REFERENCE)


def program(bundle: tn.Bundle) -> Path:
    return bundle.directory / "drag.program.json"


def with_program(bundle: tn.Bundle, value) -> None:
    """Put another program into a bundle, listed with its right digest."""
    content = json_bytes(value, indent=None)
    program(bundle).write_bytes(content)
    entry = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    changed_manifest(bundle, lambda m: m["files"].update({"drag.program.json": entry}))


def test_forged_programs_are_refused(built):
    original = json.loads(program(built).read_text())

    def forged(change):
        value = json.loads(json.dumps(original))
        change(value)
        with_program(built, value)
        with pytest.raises(tn.BundleError, match=r"drag\.program\.json: ") as caught:
            tn.load(built.directory, "drag")
        return str(caught.value)

    def unit(value):
        return value["variants"][0]["lowered"][1][1][0][1]

    assert "a part is missing" in forged(lambda p: p.pop("signature"))
    assert "'yes' stands where true or false" in forged(lambda p: p.update(debug="yes"))
    assert "parameters are not those" in forged(lambda p: p["parameters"].pop())
    assert "types are not those" in forged(lambda p: p["variants"][0]["types"].pop("dt"))
    assert "'Popen' stands where one of" in forged(lambda p: unit(p).__setitem__(0, "Popen"))
    assert "malformed" in forged(lambda p: unit(p).__setitem__(4, [[99, "i64"]]))
    assert "an element type" in forged(lambda p: p["variants"][0]["types"].update(v="f80"))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_forged_parts_of_programs_never_crash(shared_bundle, data):
    """Any value anywhere in a program is refused, or makes a kernel that is well formed."""
    value = json.loads(program(shared_bundle).read_text())
    holders: list = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, item in items:
            holders.append((node, key))
            if isinstance(item, dict | list):
                walk(item)

    walk(value)
    node, key = data.draw(st.sampled_from(holders))
    node[key] = data.draw(st.sampled_from([None, 0, -1, 2**70, "x", "dt", [], {}, [[]], True]))
    before = program(shared_bundle).read_bytes(), shared_bundle.manifest_path.read_bytes()
    try:
        with_program(shared_bundle, value)
        try:
            tn.load(shared_bundle.directory, "drag")
        except tn.BundleError:
            pass
    finally:
        program(shared_bundle).write_bytes(before[0])
        shared_bundle.manifest_path.write_bytes(before[1])


# -- the form of units -----------------------------------------------------------------------------


def test_every_record_of_the_ir_can_be_kept_with_all_its_fields():
    records = [
        value
        for value in vars(ir).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    ]
    by_value = {ir.DType, ir.Value, ir.Operation}
    assert set(records) - by_value <= set(FIELDS)
    for kind, fields in FIELDS.items():
        assert list(fields) == [each.name for each in dataclasses.fields(kind)]


def test_units_are_read_back_equal(tmp_path):
    for kernel in (law("auto"), by_speed, doubled, powers, tn.vjp(law("auto"), wrt=("v", "dt"))):
        types = kernel.default_types() | ({"n": "int"} if kernel is powers else {})
        lowered = kernel.lower(types)
        written = json.loads(json.dumps(write_lowered(lowered)))
        read = read_lowered(written)
        assert read == LoweredKernel(lowered.plan, lowered.returned, ())
        for one, other in zip(read.plan.units, lowered.plan.units, strict=True):
            assert ir.format_unit(one) == ir.format_unit(other)


@pytest.mark.parametrize("case", CONFORMANCE_KERNELS, ids=lambda case: case.name)
def test_units_of_the_conformance_suite_are_read_back_equal(case):
    types = call_types(case.name, case.kernel.signature, case.arguments(8), active())
    lowered = case.kernel.lower(types)
    read = read_lowered(json.loads(json_bytes(write_lowered(lowered))))
    assert read.returned == lowered.returned
    texts = [ir.format_unit(unit) for unit in lowered.plan.units]
    assert [ir.format_unit(unit) for unit in read.plan.units] == texts
    lines = [getattr(s, "line", 0) for u in lowered.plan.units for s in ir.statements(u.body.body)]
    found = [getattr(s, "line", 0) for u in read.plan.units for s in ir.statements(u.body.body)]
    assert found == lines
