"""How the processes of a run come by what they compute on, and whether all that a run needs is there."""
