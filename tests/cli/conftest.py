import pytest

from ringtrain.cli.main import run


@pytest.fixture
def ringtrain(request, capfd):
    """ringtrain(arguments) → (exit code, standard output, standard error) of the module's COMMAND."""

    def call(*arguments):
        return run([request.module.COMMAND, *map(str, arguments)]), *capfd.readouterr()

    return call
