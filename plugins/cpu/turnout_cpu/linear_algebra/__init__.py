"""Code for products of matrices and vectors of exact sizes.

The way from sizes to a callable:

1. ``compiling``: which code a size is run by, and the callable with its Python path;
2. ``small_matmul``, ``large_matmul``: the text of matrix products, both made of the micro-kernel of
   ``block``; ``inner_products``: that of ``dot`` and ``gemv``;
3. ``writer``: how such text is written; ``machine``: for which registers and caches;
4. ``entry``: the builtin that checks arrays and runs the code.

`turnout_cpu.implementations` offers it to ``turnout.ops``.
"""
