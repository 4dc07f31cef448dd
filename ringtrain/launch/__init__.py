<<<<<<< HEAD
"""How the processes of a run come by what they compute on."""
=======
"""What surrounds a run: which device a rank uses, and whether all that a run needs is there."""
>>>>>>> gpu-transport
