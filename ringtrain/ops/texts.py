"""Errors and notes of operations and devices that a user sees."""

from ringtrain.template import Template

# cuda/checks
INSTALL = Template("pip install 'ringtrain[cuda{major}]'")
CUPY_BROKEN = Template("--device cuda: CuPy cannot be imported: {error}")

# cuda/faults
NO_LIBRARY = Template(
    "{doing} wants a CUDA library that cannot be loaded; pip install 'ringtrain[cuda13]' (or cuda12) installs it: "
    "{error}"
)


# cuda/wgmma_trial
WGMMA_UNTRIED = Template("a child process could not try it on this GPU ({why})")


# cuda/cublas
PRODUCT = Template("a product of {a} and {b} to {c}")
