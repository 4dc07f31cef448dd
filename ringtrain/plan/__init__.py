"""Prediction of training runs from measured layers and a measured fabric."""
