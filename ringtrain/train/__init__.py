"""The training run: assembled from the other rooms, looped, evaluated, and told about."""
