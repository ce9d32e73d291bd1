"""A stranger's distribution, installed from its wheel, beside programs that know nothing of it.

`tox -e thirdparty` installs it; ``examples/thirdparty`` is its source.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STRANGER = "from_south_to_north"


def is_installed() -> bool:
    try:
        importlib.metadata.distribution("turnout-example")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not is_installed(), reason="turnout-example is not installed: run tox -e thirdparty"
)

# An operation of the demo's name, with one implementation that the timer says takes `SLOW_NS`.
PROGRAM = """
import json
import math
import os
import sys

import numpy as np
import turnout as tn

ran = []


def timer(work):
    ran.clear()
    work()
    return int(os.environ["SLOW_NS"]) if ran else 1_000


@tn.perf_dispatch(timer=timer, repeat_after_seconds=0)
def nearest_neighbours(latitude, longitude, nearest, distance_km): ...


@nearest_neighbours.register
def slow(latitude, longitude, nearest, distance_km):
    ran.append("slow")
    for i in range(len(latitude)):
        angles = [abs(longitude[j] - longitude[i]) for j in range(len(latitude))]  # on the equator
        angles[i] = math.inf
        nearest[i] = min(range(len(angles)), key=angles.__getitem__)
        distance_km[i] = math.radians(min(angles)) * 6371.0088


kind = np.array if os.environ.get("KIND", "array") == "array" else list
arguments = [kind([0.0] * 5), kind([0.0, 1.0, 3.0, 7.0, 170.0])]
loaded_early = "turnout_example" in sys.modules
results = []
for _ in range(20):
    nearest, distance_km = np.full(5, -1), np.full(5, np.nan)
    nearest_neighbours(*arguments, nearest, distance_km)
    results.append((nearest.tolist(), distance_km.tolist()))
explained = nearest_neighbours.explain(*arguments, nearest, distance_km)
facts = {
    "loaded_early": loaded_early,
    "results": results,
    "chosen": explained.chosen,
    "reason": explained.reason,
    "samples": {each.name: len(each.samples_ns) for each in explained.implementations},
    "refusals": {each.name: each.refusal for each in explained.implementations},
}
print(json.dumps(facts))
"""

DEGREE_KM = math.radians(1) * 6371.0088


@dataclass
class Site:
    """Folders on the path of the processes that a test starts."""

    folder: Path

    def install(self, name: str, source: str, site: str = "site") -> Path:
        """Put a distribution for the demo's operation into a folder, as an installer would."""
        folder = self.folder / site
        module = name.replace("-", "_")
        info = folder / f"{module}-2.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(
            f"[turnout.implementations]\nnearest_neighbours = {module}:register\n"
        )
        return folder

    def run(
        self, *command: str, sites: tuple[str, ...] = ("site",), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TURNOUT_PERF", "TURNOUT_B", "TURNOUT_T", "PYTHON"))
        }
        path = os.pathsep.join(str(self.folder / site) for site in sites)
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": path, "TURNOUT_TUNING": "off", **variables},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def program(self, **settings: Any) -> tuple[dict[str, Any], str]:
        """Run the program; what it found, and its standard error."""
        file = self.folder / "program.py"
        file.write_text(PROGRAM, encoding="utf-8")
        done = self.run(str(file), **{"SLOW_NS": "1000000", **settings})
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        for nearest, distance_km in facts["results"]:
            assert nearest == [1, 0, 1, 2, 3]
            assert distance_km == pytest.approx(
                [degrees * DEGREE_KM for degrees in (1, 1, 2, 4, 163)]
            )
        return facts, done.stderr

    def demo(self, *options: str, **settings: str) -> tuple[dict[str, Any], str]:
        # Its backend interprets kernels, which the demo would race too.
        variables = {"TURNOUT_BLOCK": "example", **settings}
        done = self.run("-m", "turnout", "demo", "--quick", "--json", *options, **variables)
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts, done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_is_installed_comes_from_a_wheel_and_not_from_the_checkout() -> None:
    distribution = importlib.metadata.distribution("turnout-example")
    assert "py3-none-any" in (distribution.read_text("WHEEL") or "")
    spec = importlib.util.find_spec("turnout_example")
    assert spec is not None
    assert spec.origin is not None
    assert ROOT / "examples" not in Path(spec.origin).resolve().parents


# ---- the demo ------------------------------------------------------------------------------------


def test_the_demo_races_it(site: Site) -> None:
    facts, printed = site.demo(
        *("--airports", "50", "--airports", "300"), TURNOUT_PERFDISPATCH_PRINT_DEBUG="1"
    )
    assert f"perf_dispatch 'nearest_neighbours': registered '{STRANGER}'\n" in printed
    for geometry in facts["geometries"]:
        names = [each["name"] for each in geometry["implementations"]]
        assert names[0] == "numpy_broadcasting"
        assert names[-1] == STRANGER  # what the demo brings was registered before
        raced = geometry["implementations"][-1]
        assert len(raced["samples_ns"]) == 3
        assert raced["why"]
    assert printed.count(f"; {STRANGER}: ") + printed.count(f"chose '{STRANGER}' (") == 2


def test_the_demo_shows_it_in_its_tables(site: Site) -> None:
    done = site.run(
        *("-m", "turnout", "demo", "--quick", "--airports", "50"), TURNOUT_BLOCK="example"
    )
    assert any(line.startswith(f"{STRANGER} ") for line in done.stdout.splitlines()), done.stdout


def test_it_can_be_forced_in_the_demo(site: Site) -> None:
    facts, _ = site.demo(
        "--airports", "50", TURNOUT_PERFDISPATCH_FORCE=f"nearest_neighbours:{STRANGER}"
    )
    (geometry,) = facts["geometries"]
    assert geometry["chosen"] == STRANGER
    assert geometry["reason"] == "forced by the environment"
    assert [each["name"] for each in geometry["implementations"] if each["chosen"]] == [STRANGER]


# ---- a program of somebody else ------------------------------------------------------------------


@pytest.mark.parametrize(("slow_ns", "winner"), [("1000000", STRANGER), ("10", "slow")])
def test_a_program_races_it_without_knowing_it(site: Site, slow_ns: str, winner: str) -> None:
    facts, printed = site.program(SLOW_NS=slow_ns)
    assert not facts["loaded_early"]
    assert facts["samples"] == {"slow": 1, STRANGER: 1}
    assert facts["chosen"] == winner
    assert facts["reason"] == "lowest median of 1 timed call each"
    assert printed == ""


def test_it_can_be_forced_in_a_program(site: Site) -> None:
    facts, _ = site.program(TURNOUT_PERFDISPATCH_FORCE=f"nearest_neighbours:{STRANGER}")
    assert facts["chosen"] == STRANGER
    assert facts["reason"] == "forced by the environment"
    assert facts["samples"] == {"slow": 0, STRANGER: 0}


def test_it_says_which_arguments_it_does_not_take(site: Site) -> None:
    facts, _ = site.program(KIND="list")
    assert facts["refusals"] == {"slow": None, STRANGER: "takes NumPy arrays only"}
    assert facts["chosen"] == "slow"


def test_it_can_be_hidden(site: Site) -> None:
    facts, _ = site.program(TURNOUT_BLOCK="turnout-example")
    assert facts["samples"] == {"slow": 0}
    assert facts["reason"] == "the only compatible implementation"


# ---- more strangers ------------------------------------------------------------------------------

SOUND = """
    import numpy as np

    def register(operation):
        @operation.register(name=__name__)
        def another(latitude, longitude, nearest, distance_km):
            apart = np.abs(longitude[:, None] - longitude)
            np.fill_diagonal(apart, np.inf)
            nearest[:] = apart.argmin(axis=1)
            distance_km[:] = np.radians(apart.min(axis=1)) * 6371.0088
"""

BROKEN = {
    "ModuleNotFoundError: No module named 'libgone'": "import libgone\n",
    "OSError: libgone.so: cannot open shared object file": """
        raise OSError("libgone.so: cannot open shared object file")
        """,
    "SystemExit: 3": "raise SystemExit(3)\n",
    "ValueError: changed my mind": SOUND + "\n        raise ValueError('changed my mind')\n",
    "AttributeError: ": "def registre(operation): ...\n",
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_one_is_left_out_with_its_reason_and_the_others_work(
    site: Site, reason: str
) -> None:
    site.install("broken-neighbours", BROKEN[reason])
    facts, printed = site.program()
    assert facts["samples"] == {"slow": 1, STRANGER: 1}
    assert facts["chosen"] == STRANGER
    assert printed.count("RuntimeWarning") == 1
    assert (
        "perf_dispatch 'nearest_neighbours': the implementations of distribution "
        "broken-neighbours 2.0 are left out, because its entry point 'nearest_neighbours = "
        f"broken_neighbours:register' failed: {reason}"
    ) in printed


def test_the_demo_goes_on_beside_a_broken_one(site: Site) -> None:
    site.install("broken-neighbours", "import libgone\n")
    facts, printed = site.demo("--airports", "50")
    assert facts["geometries"][0]["implementations"][-1]["name"] == STRANGER
    assert "distribution broken-neighbours 2.0 are left out" in printed
    assert "No module named 'libgone'" in printed


def test_the_demo_refuses_one_whose_results_are_wrong(site: Site) -> None:
    site.install("wrong-neighbours", SOUND.replace("nearest[:] =", "nearest[:] = 1 +"))
    facts, _ = site.demo("--airports", "50")
    *_, sound, wrong = facts["geometries"][0]["implementations"]
    assert (sound["name"], len(sound["samples_ns"])) == (STRANGER, 3)
    assert (wrong["name"], wrong["samples_ns"], wrong["chosen"]) == ("wrong_neighbours", [], False)
    assert "its result differs from that of 'numpy_broadcasting': 'nearest'[" in wrong["why"]


def test_the_order_is_that_of_the_names_wherever_they_are_installed(site: Site) -> None:
    site.install("zebra-neighbours", SOUND, site="first")
    site.install("ant-neighbours", SOUND, site="second")
    file = site.folder / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    for sites in (("first", "second"), ("second", "first")):
        done = site.run(str(file), sites=sites, SLOW_NS="1000000")
        found = json.loads(done.stdout)
        assert list(found["samples"]) == ["slow", "ant_neighbours", STRANGER, "zebra_neighbours"]
        assert found["chosen"] == "ant_neighbours"  # of three that take as long
        assert len(found["results"]) == 20
