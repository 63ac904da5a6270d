"""Triton's CPU interpreter, without what it does anew for every call of a device function."""

import inspect


def quicken() -> None:
    """Look for what the interpreter replaces only among the language's built-ins, by name.

    It goes through all members of the language, and of the classes of its tensors, at every launch and at every call of one device
    function by another: as much work as the kernels' own. Which of them are built-ins does not change. What is replaced stays the same.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    every = interpreter._patch_builtin
    names = {package: builtins_of(package) for package in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)}

    def patch(package, builder, scope) -> None:
        if package not in names:
            every(package, builder, scope)
            return
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):  # not while it is replaced already
                interpreter._patch_attr(package, name, member, builder, scope)

    patch.plain = every
    interpreter._patch_builtin = patch


def builtins_of(package) -> list[str]:
    """Names of a package's members that the interpreter replaces; of a package that it has not touched yet."""
    import triton.language as tl

    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
