"""Errors and notes on weights in files that a user sees."""

# packages
NO_PACKAGE = "this needs the Python package {package}: python -m pip install 'ringtrain[{extra}]'"

# tensor_file
UNREADABLE = "{path}: cannot be read: {reason}"
NO_SAFETENSORS = "{path} is no whole safetensors file: {error}"
GIT_LFS = "{path} is a pointer of git-lfs, not the weights: `git lfs pull` in its repository replaces it by the file"
