"""How the processes of a run come by what they compute on."""
