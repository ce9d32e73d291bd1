# For tests/core/test_trusted_operations.py, once a bare int is part of the key:
BARE_INT = PROGRAM.replace(
    "repeat_after_seconds=0)\ndef op(x)",
    "repeat_after_seconds=0, get_geometry_hash=lambda x: hash((3, x)))\ndef op(x)",
)


def test_geometries_that_are_a_bare_integer_are_kept_apart(runner: Runner) -> None:
    """The value of a number decides how much work there is, and the user's geometry holds it."""
    two = implementation("a", "x + 1") + implementation("b", "x + 1")
    found = {}
    for round_number in range(2):
        for number, times in ((1, {"a": 10, "b": 100}), (1000, {"a": 100, "b": 10})):
            text = BARE_INT.replace("IMPLEMENTATIONS", two).replace("ARGUMENT", str(number))
            process = runner.start(text, "program", TIMES=json.dumps(times))
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            facts = json.loads(output)
            found[round_number, number] = facts["chosen"], len(facts["timed"])
    assert found == {(0, 1): ("a", 4), (0, 1000): ("b", 4), (1, 1): ("a", 0), (1, 1000): ("b", 0)}
