"""``ringtrain outcome``"""

import click


@click.command()
@click.argument("run")
def outcome(run):
    """What became of RUN, the folder of a run, in a line; ends with the exit code that the run ended with.

    For scripts: mpirun's own status is 0 after ranks have died and the others went on (--elastic). A run that still
    says `running` has ended without a word, if it has ended: 1.
    """
    from ringtrain.storage.run_folder.outcome import KILLED, read_outcome

    found = read_outcome(run)
    click.echo(found.describe())
    return KILLED if found.exit_code is None else found.exit_code
