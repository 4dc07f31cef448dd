"""The settings of Sphinx for the documentation as a site, which scripts/docs builds.

Pages have the same places as in the repository: so a link leads to the same page on a code host and in the site. A link
to a file that is no page gives the file itself.

Sphinx, since what it deprecates works for two more major versions, MyST reads the pages as they are, and its search is
a file beside them, not a server.
"""

from ringtrain import __version__

# Pages in the order in which a newcomer needs them. A page has its own title, unless there is one before its name.
NAVIGATION = {
    "Getting started": ["docs/start-pytorch", "docs/start-network", "docs/start-site", "docs/lab"],
    "Tasks": [
        "docs/data",
        "docs/model-use",
        "docs/optimizers",
        "Continue a run: checkpoints <docs/checkpoints>",
        "docs/slurm",
        "docs/gpu",
    ],
    "Questions": [
        "docs/errors",
        "docs/slow",
        "docs/reproducibility",
        "docs/strategies",
        "docs/all-reduces",
        "docs/runs",
        "docs/plan",
        "docs/python",
        "docs/pytorch",
        "docs/plugins",
    ],
    "Reference": ["Commands, options, records <reference>", "Model files <models/README>", "CHANGELOG"],
    "How it is built": [
        "docs/architecture",
        "docs/benchmarks/README",
        "CONTRIBUTING",
        "SECURITY",
        "docs/packaging",
        "The shipped digits <ringtrain/data/DIGITS>",
    ],
}

project = "ringtrain"
author = "The ringtrain authors"
project_copyright = f"2026, {author}"
release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 4  # as a code host makes them
root_doc = "README"
highlight_language = "text"
smartquotes = False  # -- begins an option
html_theme = "furo"
html_title = f"ringtrain {release}"
html_copy_source = html_use_index = False


def tree(pages: list[str], caption: str = "", *options: str) -> str:
    named = [f":caption: {caption}"] if caption else []
    return "\n".join(["\n```{toctree}", ":hidden:", *named, *options, "", *pages, "```\n"])


TREES = {
    "README": "".join(tree(pages, caption) for caption, pages in NAVIGATION.items()),
    "docs/benchmarks/README": tree(["*"], "", ":glob:"),
}


def add_navigation(_, page: str, source: list[str]) -> None:
    """The directives of Sphinx are no Markdown that a code host shows: they come to their pages here."""
    source[0] += TREES.get(page, "")


def setup(app) -> None:
    app.connect("source-read", add_navigation)
