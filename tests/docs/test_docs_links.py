"""Links of the documents lead to files and headings, and the commands and flags of ringtrain in them exist."""

import re
import runpy
from pathlib import Path

import click
import pytest

from ringtrain.cli.main import ringtrain as program
from tests.docs.playing import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(page for folder in ("docs", "models") for page in (ROOT / folder).rglob("*.md"))]
DOCUMENTS = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]+)?\)")
# The group is empty where a block has a language.
CODE = re.compile(r"(?ms)^```\w+\n.*?^```$|(^```\n.*?^```$|`[^`\n]+`)")
COMMAND = re.compile(r"(?<![\w/.-])(?<!from )ringtrain ([a-z][a-z-]+)(?: ([a-z]+))?([^\n`|;]*)")


def slugs(document: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    titles = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document):
    for path, anchor in LINK.findall(document.read_text()):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name}: {path}"
        assert not anchor or anchor[1:] in slugs(target), f"{document.name}: {path}{anchor}"


def test_pages_that_the_code_names_are_there():
    sources = [path for folder in ("ringtrain", "scripts", "tests") for path in (ROOT / folder).rglob("*")]
    texts = (path.read_text() for path in sources if path.suffix in ("", ".py", ".sh", ".sbatch") and path.is_file())
    named = {name for text in texts for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert named and not [name for name in named if not (ROOT / name).exists()]


def test_every_page_is_named_by_the_readme():
    named = {path for path, _ in LINK.findall((ROOT / "README.md").read_text())}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= named


def test_the_navigation_of_the_site_names_every_page():
    """Those of docs/benchmarks have their own, which names all of the folder."""
    trees = runpy.run_path(str(ROOT / "docs" / "conf.py"))["NAVIGATION"].values()
    named = [ROOT / (re.sub(r".*<(.*)>$", r"\1", page) + ".md") for tree in trees for page in tree]
    assert len(set(named)) == len(named)
    assert {page for page in named if not page.exists()} == {ROOT / "reference.md"}  # scripts/docs writes it
    pages = {page for page in DOCUMENTS if page.parent.name != "benchmarks"} - {ROOT / "README.md"}
    assert pages <= set(named)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_flags_are_there(document):
    code = re.sub(r'"[^"\n]*"', "", "\n".join(CODE.findall(document.read_text())))
    for name, inner, rest in COMMAND.findall(code):
        command = program.get_command(None, name) if name in program.list_commands(None) else None
        assert command, f"ringtrain {name}"
        if isinstance(command, click.Group) and inner:
            command = command.get_command(None, inner)
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        used = re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", re.split(r"\s(?:--|>|&&|#)\s", rest)[0])
        assert set(used) <= known | {"--help", "-h"}, f"ringtrain {name} {inner}"
