"""perf_dispatch: registration, calls, compatibility, environment, threads; with fake timers."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from concurrency_support import in_threads

from turnout.errors import CallError, ConfigurationError, KernelError
from turnout.perf import PerformanceDispatcher, perf_dispatch


class FakeTimer:
    """Runs the work; the time is what the last implementation that ran says it took."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.elapsed_ns: dict[str, int] = {}
        self.timed: list[str] = []

    def __call__(self, work: Callable[[], None]) -> int:
        work()
        self.timed.append(self.ran[-1])
        return self.elapsed_ns.get(self.ran[-1], 100)

    def log(self, name: str, result: object = None) -> Callable[[Any, Any], Any]:
        def implementation(a: Any, b: Any) -> Any:
            self.ran.append(name)
            return result

        implementation.__name__ = name
        return implementation

    def take(self) -> str:
        ran = " ".join(self.ran)
        self.ran.clear()
        return ran


@pytest.fixture
def fake() -> FakeTimer:
    return FakeTimer()


def make(fake: FakeTimer, names: str = "", **settings: Any) -> PerformanceDispatcher[..., Any]:
    settings.setdefault("get_geometry_hash", lambda a, b: 0)
    settings.setdefault("repeat_after_seconds", 0)

    @perf_dispatch(timer=fake, **settings)
    def my_op(a: Any, b: Any) -> Any:
        raise AssertionError("the body of a prototype never runs")

    for name in names.split():
        my_op.register(fake.log(name))
    return my_op


def call(operation: Any, times: int, a: object = 1, b: object = 2) -> None:
    for _ in range(times):
        operation(a, b)


# ---- the seed's cycle ----------------------------------------------------------------------------


def test_the_documented_cycle(fake: FakeTimer) -> None:
    my_op = make(fake, "v1 v2")
    fake.elapsed_ns = {"v1": 200, "v2": 100}
    call(my_op, 6)
    assert fake.take() == "v1 v2 v1 v2 v1 v2"
    assert fake.timed == []
    call(my_op, 2)
    assert fake.take() == "v1 v2"
    assert fake.timed == ["v1", "v2"]
    call(my_op, 20)
    assert fake.take() == " ".join(["v2"] * 20)


def test_re_evaluation_by_count_and_by_time(fake: FakeTimer) -> None:
    now = 0.0
    my_op = make(
        fake,
        "v1 v2",
        warmup=1,
        active=1,
        repeat_after_count=3,
        repeat_after_seconds=5,
        clock=lambda: now,
    )
    call(my_op, 4 + 3)
    assert fake.take() == "v1 v2 v1 v2 v1 v1 v1"
    fake.elapsed_ns["v1"] = 500
    call(my_op, 4 + 1)
    assert fake.take() == "v1 v2 v1 v2 v2"
    now = 5.0
    call(my_op, 2)
    assert fake.take() == "v1 v2"


def test_the_defaults_re_evaluate_after_one_second_and_within_the_budget(fake: FakeTimer) -> None:
    now = 0.0

    @perf_dispatch(timer=fake, clock=lambda: now)
    def op(a: Any, b: Any) -> None: ...

    for name in ("v1", "v2"):
        op.register(fake.log(name))
    call(op, 8 + 380)  # another evaluation makes 20 calls at most, and these are 5 % of 400
    assert fake.take().split()[8:] == ["v1"] * 380
    call(op, 100)  # a second has not passed
    assert fake.take().split() == ["v1"] * 100
    now = 1.0
    call(op, 901)  # the clock is looked at every 1000 calls
    assert fake.take().split() == ["v1"] * 901
    call(op, 8)  # one warm-up, then samples; nothing speaks against the first one
    assert fake.take() == "v1 v2 v1 v2 v1 v2 v1 v2"
    call(op, 380)
    assert fake.take().split() == ["v1"] * 380
    assert 0 < op.explain(1, 2).exploration_share < 0.05


@pytest.mark.parametrize("given", [{"repeat_after_count": 4}, {"repeat_after_seconds": 2.0}])
def test_a_schedule_is_kept_exactly_and_switches_the_other_trigger_off(
    fake: FakeTimer, given: dict[str, Any]
) -> None:
    now = 0.0

    @perf_dispatch(timer=fake, clock=lambda: now, warmup=1, **given)
    def op(a: Any, b: Any) -> None: ...

    for name in ("v1", "v2"):
        op.register(fake.log(name))
    call(op, 4 + 4)
    assert fake.take() == "v1 v2 v1 v2 v1 v1 v1 v1"
    now += 2.0 if "repeat_after_seconds" in given else 1e6
    call(op, 4 + 4)
    assert fake.take() == "v1 v2 v1 v2 v1 v1 v1 v1"
    if "repeat_after_seconds" in given:
        call(op, 10_000)
        assert set(fake.take().split()) == {"v1"}


def test_exactly_one_implementation_runs_per_call() -> None:
    @perf_dispatch(get_geometry_hash=lambda x: x.shape, timer=lambda work: (work(), 1)[1])
    def halve(x: Any) -> None: ...

    @halve.register
    def halve_in_place(x: Any) -> None:
        x *= np.float32(0.5)

    @halve.register
    def halve_by_division(x: Any) -> None:
        np.divide(x, np.float32(2), out=x)

    x = np.full((33, 70), 2.0**20, np.float32)
    for number in range(1, 13):
        halve(x)
        np.testing.assert_array_equal(x, np.full((33, 70), 2.0 ** (20 - number), np.float32))


def test_return_values_pass_in_every_phase(fake: FakeTimer) -> None:
    my_op = make(fake)
    result = object()
    for name in ("v1", "v2"):
        my_op.register(fake.log(name, result))
    assert all(my_op(1, 2) is result for _ in range(12))


def test_each_geometry_has_its_own_winner(fake: FakeTimer) -> None:
    my_op = make(fake, "v1 v2", warmup=0, get_geometry_hash=lambda a, b: hash(a.shape + b.shape))
    small, large = np.zeros(3), np.zeros(1000)
    fake.elapsed_ns = {"v1": 1, "v2": 2}
    call(my_op, 2, small, small)
    fake.elapsed_ns = {"v1": 2, "v2": 1}
    call(my_op, 2, large, small)
    fake.take()
    for _ in range(3):
        my_op(small, small)
        my_op(large, small)
    assert fake.take() == "v1 v2 v1 v2 v1 v2"
    assert my_op.decision(small, small).chosen == "v1"  # type: ignore[union-attr]


def test_decision_tells_what_was_measured(fake: FakeTimer) -> None:
    my_op = make(fake, "v1 v2", warmup=1, active=2)
    assert my_op.decision(1, 2) is None
    fake.elapsed_ns = {"v1": 30, "v2": 20}
    call(my_op, 3)
    undecided = my_op.decision(1, b=2)
    assert undecided is not None
    assert (undecided.chosen, undecided.samples) == (None, {"v1": (30,)})
    call(my_op, 3)
    decided = my_op.decision(b=2, a=1)
    assert decided is not None
    assert decided.geometry == 0
    assert decided.chosen == "v2"
    assert decided.samples == {"v1": (30, 30), "v2": (20, 20)}
    assert fake.take() == "v1 v2 v1 v2 v1 v2"  # asking runs nothing
    my_op.reset()
    assert my_op.decision(1, 2) is None


# ---- registration --------------------------------------------------------------------------------


def test_register_returns_the_function_itself_and_marks_it(fake: FakeTimer) -> None:
    my_op = make(fake)

    @my_op.register
    def v1(a: int, b: int) -> None: ...

    @my_op.register(name="second", is_compatible=lambda a, b: True)
    def v2(a: int, b: int) -> None: ...

    assert v1.__name__ == "v1"
    assert v1.__turnout_registered__ == v2.__turnout_registered__ == "my_op"  # type: ignore
    assert my_op.implementations == ("v1", "second")
    assert repr(my_op) == "<perf_dispatch 'my_op': ['v1', 'second']>"


def test_callable_objects_can_be_registered(fake: FakeTimer) -> None:
    my_op = make(fake)

    class Kernel:
        __slots__ = ("__name__", "__signature__")

        def __init__(self) -> None:
            self.__name__ = "a_kernel"
            self.__signature__ = inspect.signature(lambda a, b: None)

        def __call__(self, *args: object) -> tuple[object, ...]:
            return args

    kernel = Kernel()
    assert my_op.register(kernel) is kernel
    assert my_op.implementations == ("a_kernel",)
    assert my_op(3, b=4) == (3, 4)


def test_a_callable_without_a_name_needs_one(fake: FakeTimer) -> None:
    my_op = make(fake)

    class Nameless:
        def __call__(self, a: object, b: object) -> tuple[object, object]:
            return a, b

    with pytest.raises(KernelError, match=r"no usable name \(None\): give one .*\(name=\.\.\.\)"):
        my_op.register(Nameless())
    for name in ("", "a:b", "a,b", "a b"):
        with pytest.raises(KernelError, match=rf"no usable name \('{name}'\)"):
            my_op.register(Nameless(), name=name)
    my_op.register(Nameless(), name="nameless")
    assert my_op(1, 2) == (1, 2)


def test_parameter_names_must_be_the_prototypes(fake: FakeTimer) -> None:
    my_op = make(fake)
    for wrong in (lambda a, c: None, lambda b, a: None, lambda a: None, lambda a, b, c=0: None):
        names = list(inspect.signature(wrong).parameters)
        with pytest.raises(KernelError) as caught:
            my_op.register(wrong, name="wrong")
        assert str(caught.value) == (
            f"perf_dispatch 'my_op': the implementation 'wrong' has the parameters {names}, the "
            "prototype has ['a', 'b']: give it the same names in the same order"
        )
    assert my_op.implementations == ()


def test_parameter_kinds_must_fit(fake: FakeTimer) -> None:
    my_op = make(fake)
    with pytest.raises(KernelError, match="declares 'b' as keyword-only, the prototype as posit"):
        my_op.register(lambda a, *, b: None, name="wrong")
    my_op.register(lambda a, b, /: (a, b), name="right")
    assert my_op(b=1, a=2) == (2, 1)


def test_a_function_that_tells_no_parameters_is_refused(fake: FakeTimer) -> None:
    with pytest.raises(KernelError, match="'min' does not tell its parameters: wrap it in a plain"):
        make(fake).register(min)


def test_names_are_unique(fake: FakeTimer) -> None:
    my_op = make(fake, "v1")
    with pytest.raises(KernelError) as caught:
        my_op.register(fake.log("v1"))
    assert str(caught.value) == (
        "perf_dispatch 'my_op': an implementation 'v1' is registered already: give this one "
        "another name with register(name=...)"
    )
    my_op.register(fake.log("v1"), name="v1_again")
    assert my_op.implementations == ("v1", "v1_again")


def test_only_callables_are_registered(fake: FakeTimer) -> None:
    my_op = make(fake)
    with pytest.raises(KernelError, match="takes a kernel or a plain function, not 3"):
        my_op.register(3)  # type: ignore
    with pytest.raises(KernelError, match=r"'v1': is_compatible=True is not callable"):
        my_op.register(is_compatible=True)(fake.log("v1"))  # type: ignore
    with pytest.raises(KernelError, match=r"is_compatible cannot be called .*\['a', 'b'\]: too"):
        my_op.register(is_compatible=lambda a: True)(fake.log("v1"))
    assert my_op.implementations == ()


def test_the_prototype_is_a_plain_function(fake: FakeTimer) -> None:
    for wrong in (functools.partial(print), make(fake), staticmethod(len), 3):
        with pytest.raises(KernelError, match="decorates a plain function that serves as the prot"):
            perf_dispatch(wrong)  # type: ignore


def test_get_geometry_hash_is_checked() -> None:
    with pytest.raises(KernelError, match=r"'op': get_geometry_hash=7 is not callable"):
        perf_dispatch(get_geometry_hash=7)(_named("op"))  # type: ignore
    with pytest.raises(KernelError, match=r"get_geometry_hash cannot be called .* too many pos"):
        perf_dispatch(get_geometry_hash=lambda a: 0)(_named("op"))


def _named(name: str) -> Callable[[Any, Any], Any]:
    def prototype(a: Any, b: Any) -> Any: ...

    prototype.__name__ = name
    return prototype


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="warmup=-1 is not allowed"):
        perf_dispatch(warmup=-1)
    with pytest.raises(ConfigurationError, match="max_geometries=0 is not allowed"):
        perf_dispatch(max_geometries=0)(_named("op"))


def test_an_implementation_registered_later_is_tried_alone(fake: FakeTimer) -> None:
    my_op = make(fake, "v1 v2", warmup=1)
    call(my_op, 6)
    fake.elapsed_ns["v3"] = 1
    my_op.register(fake.log("v3"))
    fake.take()
    call(my_op, 4)
    assert fake.take() == "v3 v3 v3 v3"
    assert fake.timed == ["v1", "v2", "v3"]


def test_two_operations_of_one_name_are_independent(fake: FakeTimer) -> None:
    first, second = make(fake, "v1 v2", warmup=0), make(fake, "v1 w2", warmup=0)
    call(first, 2)
    assert second.decision(1, 2) is None
    assert second.implementations == ("v1", "w2")
    assert type(first) is not type(second)
    assert isinstance(first, PerformanceDispatcher)


# ---- compatibility -------------------------------------------------------------------------------


def test_compatibility_is_asked_at_every_call(fake: FakeTimer) -> None:
    my_op = make(fake, "always", warmup=0)
    my_op.register(is_compatible=lambda a, b: a >= 10)(fake.log("large"))
    fake.elapsed_ns["large"] = 1
    call(my_op, 3, a=10)
    assert fake.take() == "always large large"
    call(my_op, 2, a=9)  # the same geometry
    assert fake.take() == "always always"
    call(my_op, 2, a=10)
    assert fake.take() == "large large"
    assert my_op.decision(9, 0).chosen == "always"  # type: ignore[union-attr]
    assert my_op.decision(10, 0).chosen == "large"  # type: ignore[union-attr]


def test_the_only_compatible_one_is_used_at_once_and_counts_as_decided(fake: FakeTimer) -> None:
    my_op = make(fake, repeat_after_count=1, repeat_after_seconds=1.0, clock=lambda: 0.0)
    my_op.register(is_compatible=lambda a, b: True)(fake.log("v1"))
    my_op.register(is_compatible=lambda a, b: False)(fake.log("v2"))
    call(my_op, 1000)
    assert set(fake.ran) == {"v1"}
    assert fake.timed == []
    decision = my_op.decision(1, 2)
    assert decision is not None
    assert (decision.chosen, decision.reason) == ("v1", "the only compatible implementation")


@pytest.mark.parametrize("answer", [False, np.False_, "needs 4 samples", ""])
def test_answers_that_refuse(fake: FakeTimer, answer: object) -> None:
    my_op = make(fake, "v1 v2", warmup=0)
    my_op.register(is_compatible=lambda a, b: answer)(fake.log("refusing"))
    call(my_op, 5)
    assert fake.take() == "v1 v2 v1 v1 v1"


@pytest.mark.parametrize("answer", [True, np.True_])
def test_answers_that_accept(fake: FakeTimer, answer: object) -> None:
    my_op = make(fake, "v1", warmup=0)
    my_op.register(is_compatible=lambda a, b: answer)(fake.log("accepting"))
    call(my_op, 3)
    assert fake.take() == "v1 accepting v1"


@pytest.mark.parametrize("answer", [1, 0, None, [], np.zeros(2, bool)])
def test_other_answers_are_an_error(fake: FakeTimer, answer: object) -> None:
    my_op = make(fake, "v1 v2")
    my_op.register(is_compatible=lambda a, b: answer)(fake.log("odd"))
    message = r"is_compatible of the implementation 'odd' returned .* of type \w+: it must return"
    for _ in range(2):
        with pytest.raises(KernelError, match=message):
            my_op(1, 2)


def test_reasons_do_not_multiply_the_decisions(fake: FakeTimer) -> None:
    my_op = make(fake, "v1 v2", warmup=0)
    my_op.register(is_compatible=lambda a, b: f"{a} is odd" if a % 2 else True)(fake.log("even"))
    for number in range(1, 99, 2):
        call(my_op, 1, a=number)
    assert fake.timed == ["v1", "v2"]


def test_when_nothing_is_compatible_every_reason_is_listed(fake: FakeTimer) -> None:
    my_op = make(fake)
    my_op.register(is_compatible=lambda a, b: False)(fake.log("v1"))
    my_op.register(is_compatible=lambda a, b: f"needs 1024 samples, got {a}")(fake.log("v2"))
    with pytest.raises(CallError) as caught:
        my_op(7, 2)
    assert str(caught.value) == (
        "no implementation of perf_dispatch 'my_op' is compatible with these arguments:\n"
        "  v1: is_compatible returned False\n"
        "  v2: needs 1024 samples, got 7"
    )
    my_op.register(fake.log("v3"))
    call(my_op, 2)
    assert fake.take() == "v3 v3"


def test_without_implementations(fake: FakeTimer) -> None:
    with pytest.raises(CallError) as caught:
        make(fake)(1, 2)
    assert str(caught.value) == (
        "perf_dispatch 'my_op' has no implementation: register at least one with @my_op.register"
    )


# ---- failures and nesting ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [CallError, KeyboardInterrupt])
def test_an_exception_passes_and_the_trial_is_repeated(
    fake: FakeTimer, error: type[BaseException]
) -> None:
    my_op = make(fake, "v1", warmup=1)
    fails = True

    @my_op.register
    def v2(a: Any, b: Any) -> None:
        if fails:
            raise error("boom")
        fake.ran.append("v2")

    call(my_op, 1)
    for _ in range(3):
        with pytest.raises(error, match="boom"):
            my_op(1, 2)
    fails = False
    call(my_op, 4)
    assert fake.take() == "v1 v2 v1 v2 v1"


def test_an_implementation_that_raises_is_left_out_from_then_on(fake: FakeTimer) -> None:
    my_op = make(fake, "v1", warmup=1)

    @my_op.register
    def v2(a: Any, b: Any) -> None:
        raise ValueError("boom")

    call(my_op, 1)
    with pytest.raises(ValueError, match="boom") as caught:
        my_op(1, 2)
    assert caught.value.__notes__ == [
        "raised by 'v2', an implementation of perf_dispatch 'my_op'",
        "no other implementation was tried in its place, because it is not known what 'v2' writes; "
        "register it with mutates=, which may be empty",
    ]
    call(my_op, 5)
    assert fake.take() == "v1 v1 v1 v1 v1 v1"
    decision = my_op.decision(1, 2)
    assert decision.chosen == "v1"
    assert decision.reason == (
        "lowest median of 1 timed call each; without 'v2', which raised ValueError: boom"
    )


def test_an_operation_is_no_implementation_of_itself(fake: FakeTimer) -> None:
    my_op = make(fake, "v1")
    with pytest.raises(KernelError, match="'my_op' cannot be an implementation of itself"):
        my_op.register(name="again")(my_op)


def test_functions_whose_call_does_not_do_the_work_are_refused(fake: FakeTimer) -> None:
    my_op = make(fake, "v1")

    async def later(a: Any, b: Any) -> None: ...

    def pieces(a: Any, b: Any) -> Any:
        yield a

    for function in (later, pieces):
        with pytest.raises(KernelError, match="is a coroutine function or a generator"):
            my_op.register(function)
        with pytest.raises(KernelError, match="is a coroutine function or a generator"):
            perf_dispatch(function)
    assert my_op.implementations == ("v1",)


@pytest.mark.parametrize("setting", ["timer", "clock"])
def test_timer_and_clock_must_be_functions(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting}=3 is not allowed: give a function"):
        perf_dispatch(**{setting: 3})(lambda x: None)


def test_an_implementation_may_call_its_operation(fake: FakeTimer) -> None:
    @perf_dispatch(get_geometry_hash=lambda n: n, timer=lambda work: (work(), 1)[1])
    def total(n: int) -> int: ...

    @total.register
    def closed_form(n: int) -> int:
        return n * (n + 1) // 2

    @total.register
    def recursive(n: int) -> int:
        return n + total(n - 1) if n else 0

    for _ in range(12):
        assert total(4) == 10


def test_recursion_within_one_geometry(fake: FakeTimer) -> None:
    @perf_dispatch(get_geometry_hash=lambda n: 0, timer=lambda work: (work(), 1)[1])
    def total(n: int) -> int: ...

    @total.register
    def recursive(n: int) -> int:
        return n + total(n - 1) if n else 0

    @total.register
    def closed_form(n: int) -> int:
        return n * (n + 1) // 2

    assert [total(4) for _ in range(12)] == [10] * 12


# ---- identity, methods, memory -------------------------------------------------------------------


def test_metadata_is_the_prototypes() -> None:
    @perf_dispatch
    def scale(a: int, /, b: float = 2.0, *, c: str = "x") -> float:
        """Scale it."""

    assert scale.__name__ == "scale"
    assert scale.__doc__ == "Scale it."
    assert scale.__module__ == __name__
    assert inspect.signature(scale) == inspect.signature(scale.__wrapped__)  # type: ignore


@perf_dispatch(get_geometry_hash=lambda a, b: 0)
def module_level(a: Any, b: Any) -> Any: ...


class Solver:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @perf_dispatch(get_geometry_hash=lambda self, x, y: self.factor)
    def scale(self, x: int, y: int = 1) -> int: ...

    @scale.register
    def scale_now(self, x: int, y: int = 1) -> int:
        return self.factor * x * y


def test_a_method_binds_its_instance() -> None:
    assert Solver(3).scale(4) == 12
    assert Solver(3).scale(y=5, x=4) == 60
    assert Solver.scale(Solver(2), 4) == 8
    assert Solver(3).scale_now(4) == 12
    assert str(inspect.signature(Solver(3).scale)) == "(x: 'int', y: 'int' = 1) -> 'int'"


def test_pickled_and_copied_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    for operation in (module_level, Solver.scale):
        assert pickle.loads(pickle.dumps(operation)) is operation
        assert copy.deepcopy(operation) is operation
        assert copy.copy(operation) is operation
        assert copy.deepcopy({"op": operation})["op"] is operation


def _this_module() -> Any:
    module = type(sys)(__name__)
    module.__dict__.update(globals())
    return module


def test_no_argument_is_kept_alive(fake: FakeTimer) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    for settings in ({"get_geometry_hash": None}, {}):
        my_op = make(fake, "v1 v2", warmup=0, **settings)

        @my_op.register
        def failing(a: Any, b: Any) -> None:
            raise ValueError("boom")

        array = np.zeros(4).view(Array)
        reference = weakref.ref(array)
        for _ in range(5):
            try:
                my_op(array, {"inside": array})
            except ValueError:
                continue
        assert my_op.decision(array, {"inside": array}) is not None
        del array
        gc.collect()
        assert reference() is None


# ---- the environment -----------------------------------------------------------------------------


FORCE = "TURNOUT_PERFDISPATCH_FORCE"
DEBUG = "TURNOUT_PERFDISPATCH_PRINT_DEBUG"
LISTING = (
    "perf_dispatch 'my_op': registered 'v1'\n"
    "perf_dispatch 'my_op': registered 'v2'\n"
    "perf_dispatch 'my_op': available implementations: ['v1', 'v2']\n"
)


@pytest.mark.parametrize(
    "value", ["my_op:v2", " other:x , my_op : v2 ,,", f"my_op:v1,{__name__}.make.<locals>.my_op:v2"]
)
def test_a_forced_implementation_is_the_only_one_to_run(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv(FORCE, value)
    my_op = make(fake, "v1 v2", repeat_after_count=1)
    assert capsys.readouterr().out == ""
    call(my_op, 20)
    assert set(fake.ran) == {"v2"}
    assert fake.timed == []
    assert capsys.readouterr().out == LISTING
    assert my_op.decision(1, 2).reason == "forced by the environment"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["?", " ? ", "other:x"])
def test_names_are_listed_once_for_any_value(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv(FORCE, value)
    my_op = make(fake, "v1 v2")
    call(my_op, 8)
    assert fake.take() == "v1 v2 v1 v2 v1 v2 v1 v2"
    assert capsys.readouterr().out == LISTING


@pytest.mark.parametrize("value", ["", "  ", None])
def test_nothing_is_listed_when_nothing_is_set(
    fake: FakeTimer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: str | None,
) -> None:
    monkeypatch.delenv(FORCE, raising=False)
    if value is not None:
        monkeypatch.setenv(FORCE, value)
    call(make(fake, "v1 v2"), 10)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("entry", ["my_op", "my_op:", ":v1", "my_op:v1:v2", "?,", "a b"])
def test_malformed_entries_are_an_error(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.setenv(FORCE, f"other:x,{entry}")
    my_op = make(fake, "v1 v2")
    shown = entry.strip(",")
    for _ in range(2):
        with pytest.raises(ConfigurationError) as caught:
            my_op(1, 2)
        assert str(caught.value) == (
            f"TURNOUT_PERFDISPATCH_FORCE: the entry {shown!r} is malformed: write "
            "'operation:implementation', separate several by commas, or set the variable to '?' "
            "to list the names"
        )
    assert fake.ran == []


def test_one_operation_cannot_be_forced_twice(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCE, "my_op:v1,my_op:v2")
    with pytest.raises(ConfigurationError, match=r"'my_op' is given two .*'v1' and 'v2': keep one"):
        make(fake, "v1 v2")(1, 2)
    monkeypatch.setenv(FORCE, "my_op:v1,my_op:v1")
    call(make(fake, "v1 v2"), 3)
    assert fake.take() == "v1 v1 v1"


def test_an_unknown_forced_name_warns_and_measures(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCE, "my_op:v3")
    my_op = make(fake, "v1 v2", warmup=0)
    with pytest.warns(RuntimeWarning) as caught:
        my_op(1, 2)
    assert [str(warning.message) for warning in caught] == [
        "perf_dispatch 'my_op': the forced implementation 'v3' does not exist, the available ones "
        "are ['v1', 'v2']; the operation chooses one itself"
    ]
    assert caught[0].filename == __file__
    call(my_op, 2)
    assert fake.take() == "v1 v2 v1"


def test_a_forced_implementation_never_runs_on_arguments_it_refuses(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCE, "my_op:square")
    my_op = make(fake, "v1 v2", warmup=0)
    my_op.register(is_compatible=lambda a, b: a == b or "not square")(fake.log("square"))
    with pytest.warns(RuntimeWarning) as caught:
        call(my_op, 3, 1, 7)
    assert [str(warning.message) for warning in caught] == [
        "perf_dispatch 'my_op': the forced implementation 'square' is not compatible with the "
        "arguments of this call (not square); the operation chooses another one"
    ]
    assert caught[0].filename == __file__
    assert fake.take() == "v1 v2 v1"
    call(my_op, 3, 64, 64)
    call(my_op, 1, 1, 8)  # has been warned of
    assert fake.take() == "square square square v1"


def test_debug_prints_registrations_and_choices(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    my_op = make(fake, "v1 v2", warmup=0)
    assert capsys.readouterr().out == LISTING[: LISTING.index("perf_dispatch 'my_op': available")]
    fake.elapsed_ns = {"v1": 20_100, "v2": 12_345}
    call(my_op, 5)
    assert capsys.readouterr().out == (
        "perf_dispatch 'my_op': chose 'v2' (12.3 us; v1: 20.1 us) for geometry 0\n"
    )
    monkeypatch.setenv(FORCE, "my_op:v1")
    call(make(fake, "v1 v2"), 2)
    assert capsys.readouterr().out == LISTING + (
        "perf_dispatch 'my_op': chose 'v1' (forced by the environment) for geometry 0\n"
    )


@pytest.mark.parametrize("value", ["0", "", " "])
def test_debug_is_off(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv(DEBUG, value)
    call(make(fake, "v1 v2"), 10)
    assert capsys.readouterr().out == ""


def test_debug_is_validated(fake: FakeTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    my_op = make(fake)
    monkeypatch.setenv(DEBUG, "yes")
    message = "TURNOUT_PERFDISPATCH_PRINT_DEBUG='yes' is not allowed: set it to 1"
    with pytest.raises(ConfigurationError, match=message):
        my_op.register(fake.log("v1"))
    assert my_op.implementations == ()
    with pytest.raises(ConfigurationError, match=message):
        my_op(1, 2)


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 32])
def test_threads_get_right_results_and_one_tuning_per_geometry(count: int) -> None:
    timed: list[str] = []
    local = threading.local()

    def timer(work: Callable[[], None]) -> int:
        work()
        timed.append(local.ran)
        return {"v1": 2, "v2": 1}[local.ran]

    @perf_dispatch(
        get_geometry_hash=lambda a, b: a.shape, repeat_after_seconds=0, active=2, timer=timer
    )
    def double(a: Any, b: Any) -> None: ...

    for name in ("v1", "v2"):

        def implementation(a: Any, b: Any, name: str = name) -> int:
            np.multiply(a, 2, out=b)
            local.ran = name
            return len(a)

        double.register(
            functools.wraps(double.__wrapped__)(implementation),  # type: ignore[attr-defined]
            name=name,
        )

    def work() -> None:
        for n in range(200):
            a = np.arange(float(n % 2 + 1)) + 1
            b = np.zeros_like(a)
            assert double(a, b) == len(a)
            np.testing.assert_array_equal(b, a * 2)

    in_threads(count, work)
    assert sorted(timed) == ["v1"] * 4 + ["v2"] * 4
    for shape in (1, 2):
        assert double.decision(np.zeros(shape), None).chosen == "v2"  # type: ignore


def test_registering_while_other_threads_call(fake: FakeTimer) -> None:
    my_op = make(fake, "v0", warmup=1)
    names = iter([f"v{number}" for number in range(1, 41)])
    lock = threading.Lock()

    def work() -> None:
        for _ in range(10):
            with lock:
                name = next(names)
            accepts = name[-1] in "02468"
            my_op.register(is_compatible=lambda a, b, accepts=accepts: accepts)(fake.log(name))
            call(my_op, 20)

    in_threads(4, work)
    assert sorted(my_op.implementations) == sorted(f"v{number}" for number in range(41))
    call(my_op, 200)
    fake.take()
    call(my_op, 1)
    assert fake.take() == my_op.decision(1, 2).chosen  # type: ignore[union-attr]
    assert {name[-1] for name in fake.timed} <= set("02468")


def test_prints_are_made_without_a_lock(fake: FakeTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that calls operations itself, from four threads at once."""
    monkeypatch.setenv(DEBUG, "1")
    monkeypatch.setenv(FORCE, "?")
    local = threading.local()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if not getattr(local, "is_writing", False):
                local.is_writing = True
                for operation in operations:
                    operation(1, 2)
                local.is_writing = False
            return super().write(text)

    operations: list[Any] = []
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    operations += [make(fake, "v1 v2", warmup=0), make(fake, "v1 v2", warmup=0)]
    in_threads(4, lambda: [call(operation, 20) for operation in operations])
    assert stream.getvalue().count("available implementations: ['v1', 'v2']") == 2


def test_a_warning_that_is_an_error_does_not_stop_the_operation(
    fake: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCE, "my_op:missing")
    my_op = make(fake, "v1 v2", warmup=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="'missing' does not exist"):
            my_op(1, 2)
        call(my_op, 3)
    assert fake.take() == "v1 v2 v1"
