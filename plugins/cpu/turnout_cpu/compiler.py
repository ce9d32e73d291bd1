"""LLVM IR text to object code, and object code to an address. The only module that uses llvmlite.

LLVM's objects are not safe to share between threads, so one lock covers everything here. A fork
waits for the lock, so that a child never starts with half-done work of another thread.

It is the lock that llvmlite takes around each call of LLVM: other packages use LLVM too, and
objects of LLVM are freed whenever Python drops them, in any thread. With a lock of our own, a child
of a fork in the middle of such a call would wait for llvmlite's for ever.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable
from typing import NamedTuple

import llvmlite
import llvmlite.binding as llvm

from turnout.plugin import CompileError

from . import vector_math

_lock = llvm.ffi.lib._lock
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.__enter__, after_in_parent=_lock.__exit__, after_in_child=_lock.__exit__
    )


class Host(NamedTuple):
    """What LLVM says about this machine."""

    cpu: str
    features: tuple[str, ...]
    """Each with a sign: ``+avx2`` is there, ``-avx512f`` is not."""
    versions: tuple[str, ...]
    platform: str
    """Architecture and operating system, as LLVM calls them."""

    @property
    def present(self) -> frozenset[str]:
        """Names of the features that are there."""
        return frozenset(feature[1:] for feature in self.features if feature[0] == "+")


class Compiled(NamedTuple):
    """Object code, and the text of the optimised module and its assembly where asked for."""

    code: bytes
    symbols: tuple[str, ...]
    """Functions of other libraries that the code calls."""
    optimised: str = ""
    assembly: str = ""


@functools.cache
def host() -> Host:
    """Describe this machine; initialises LLVM.

    Raises
    ------
    RuntimeError
        LLVM has no code generator for this machine.
    """
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features().flatten()
        version = ".".join(map(str, llvm.llvm_version_info))
        return Host(
            llvm.get_host_cpu_name(),
            tuple(feature for feature in features.split(",") if feature),
            (f"llvmlite={llvmlite.__version__}", f"llvm={version}"),
            llvm.get_default_triple(),
        )


def compile_text(
    text: str,
    cpu: str,
    features: str,
    level: int,
    *,
    keep_text: bool = False,
    is_final: bool = False,
) -> Compiled:
    """Optimise a module and generate object code.

    Parameters
    ----------
    text : str
        LLVM IR.
    cpu, features : str
        For which processor, in LLVM's words.
    level : int
        Optimisation level, 0 to 3.
    keep_text : bool
        Return the optimised module and the assembly as text, too.
    is_final : bool
        The text is as good as its author could make it: only choose instructions and registers.

    Raises
    ------
    CompileError
        LLVM refuses the text.
    """
    host()
    with _lock:
        # Arithmetic stays as it is written: LLVM fuses operations only where a `contract` flag
        # allows it.
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=level, reloc="pic", jit=True
        )
        try:
            module = llvm.parse_assembly(text)
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as error:
            raise CompileError("cpu", str(error), text) from error
        if not is_final:
            tuning = llvm.create_pipeline_tuning_options(speed_level=level)
            tuning.loop_vectorization = tuning.slp_vectorization = level >= 2
            builder = llvm.create_pass_builder(machine, tuning)
            builder.getModulePassManager().run(module, builder)
        optimised = str(module) if keep_text else ""
        symbols = tuple(
            function.name
            for function in module.functions
            if function.is_declaration and not function.name.startswith("llvm.")
        )
        code = machine.emit_object(module)
        # Generating code changes the module, so that the texts are made of a copy: kept or not, the
        # code is the same.
        assembly = machine.emit_assembly(llvm.parse_assembly(optimised)) if keep_text else ""
        return Compiled(code, symbols, optimised, assembly)


class Loaded:
    """Object code in memory; it stays there as long as this object does.

    Parameters
    ----------
    code : bytes
        Intact object code for this machine: LLVM ends the process on anything else.
    entry : str
        Name of the entry point.
    symbols : iterable of str
        Functions of other libraries that the code calls.

    Raises
    ------
    CompileError
        A symbol or the entry point is missing.

    Attributes
    ----------
    address : int
        Where the entry point is.
    """

    def __init__(self, code: bytes, entry: str, symbols: Iterable[str]) -> None:
        host()
        with _lock:
            _load_libraries()
            missing = [symbol for symbol in symbols if not llvm.address_of_symbol(symbol)]
            if missing:
                raise CompileError("cpu", f"the code calls {', '.join(missing)}, not found here")
            # An engine of its own gives all memory back with it, unlike a library in a shared
            # LLJIT. It only links here, so its target machine needs no processor.
            machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            self.address = self._engine.get_function_address(entry)
        if not self.address:
            raise CompileError("cpu", f"the object code has no entry point {entry!r}")


@functools.cache
def _load_libraries() -> None:
    """Let LLVM find math functions; where a library has another name, its symbols are there."""
    for name in (vector_math.LIBRARY_NAME, "libm.so.6"):
        with contextlib.suppress(RuntimeError):
            llvm.load_library_permanently(name)
