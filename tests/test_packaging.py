"""What recipes and the citation say is what setup.cfg says: version, dependencies, extras."""

import configparser
import re
import runpy
import sys
from types import ModuleType

import pytest

from ringtrain import __version__
from tests.docs.playing import ROOT

PACKAGING = ROOT / "scripts" / "packaging"
SPACK = PACKAGING / "spack" / "spack_repo" / "ringtrain" / "packages" / "py_ringtrain" / "package.py"


@pytest.fixture(scope="module")
def options() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


@pytest.fixture(scope="module")
def wanted(options) -> dict[str, str]:
    """The oldest version of each package that ringtrain runs with, Python among them."""
    packages = dict(line.split(">=") for line in options["options"]["install_requires"].split())
    return packages | {"python": options["options"]["python_requires"].removeprefix(">=")}


def test_the_version_and_the_recipe_of_conda_forge(wanted):
    for path in (ROOT / "CITATION.cff", PACKAGING / "conda" / "recipe.yaml"):
        assert re.findall(r"(?m)^ *version: (\d.*)$", path.read_text()) == [__version__], path
    run = (PACKAGING / "conda" / "recipe.yaml").read_text().split("\n  run:\n")[1].split("\n\n")[0]
    assert dict(line.removeprefix("    - ").split(" >=") for line in run.splitlines()) == wanted


def test_the_recipe_of_easybuild_is_of_this_version_and_has_every_dependency(wanted):
    path = PACKAGING / "easybuild" / f"ringtrain-{__version__}-foss-2026.1.eb"
    recipe = runpy.run_path(str(path), {"SOURCE_TAR_GZ": "%(name)s-%(version)s.tar.gz"})
    assert (recipe["version"], path.stem.split("-")[2:]) == (__version__, [*recipe["toolchain"].values()])
    named = {name.lower() for name, _ in recipe["dependencies"]}
    bundled = {"numpy": "scipy-bundle"} | dict.fromkeys(("click", "rich", "tomli-w"), "python-bundle-pypi")
    assert {bundled.get(name, name) for name in wanted} <= named


class Directives:
    """What a package of Spack calls while its class is made: ``said`` holds the arguments by the name of the call."""

    def __init__(self):
        self.said = {}

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.said.setdefault(name, []).append((args, kwargs))


def test_the_recipe_of_spack(wanted, options, monkeypatch):
    directives = Directives()
    package, systems = ModuleType("spack.package"), ModuleType("spack_repo.builtin.build_systems.python")
    names = ("license", "version", "variant", "depends_on")
    vars(package).update({name: getattr(directives, name) for name in names}, __all__=names)
    systems.PythonPackage = object
    for module in (package, systems):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    recipe = runpy.run_path(str(SPACK))["PyRingtrain"]
    assert recipe.git == ROOT.as_uri()
    runs = [
        args[0].removeprefix("py-").removesuffix(":").split("@")
        for args, kwargs in directives.said["depends_on"]
        if "run" in kwargs["type"] and "when" not in kwargs
    ]
    assert dict(runs) == wanted
    extras = {
        (kwargs["when"].removeprefix("+"), args[0].removeprefix("py-").removesuffix(":").replace("@", ">="))
        for args, kwargs in directives.said["depends_on"]
        if "when" in kwargs
    }
    assert extras == {(name, options["options.extras_require"][name].strip()) for name in ("plot", "images")}


def test_the_image_of_apptainer_has_extras_that_are_there(options):
    text = (PACKAGING / "apptainer" / "ringtrain.def").read_text()
    extras = re.search(r"\.whl\)\[(.*)\]", text)[1].split(",")
    assert set(extras) <= set(options["options.extras_require"])
