from pathlib import Path

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyRingtrain(PythonPackage):
    """Data-parallel training of neural networks under MPI, with its own all-reduces, proved and measured."""

    git = Path(__file__).resolve().parents[7].as_uri()  # the checkout that this recipe is part of

    license("Apache-2.0")

    version("main", branch="main")

    variant("plot", default=True, description="Draw curves and comparisons")
    variant("images", default=True, description="Read folders and shards of images")

    depends_on("cxx", type="build")  # Spack sets CXX: setup.py takes it, and fetches no compiler
    depends_on("py-setuptools@77:", type="build")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-click@8.2:", type=("build", "run"))
    depends_on("py-h5py@3.11:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-rich@14.3:", type=("build", "run"))
    depends_on("py-tomli-w@1.0:", type=("build", "run"))
    depends_on("py-matplotlib@3.10:", type="run", when="+plot")
    depends_on("py-pillow@11.3:", type="run", when="+images")
