"""Trains the benchmark's models: random forests of 10 trees over 28 inputs, as in the paper. One is small, which is the harshest
on the way to it; one has a quarter of a million nodes, as one has that learned from many noisy rows."""

import pathlib
import pickle

import numpy
from sklearn.ensemble import RandomForestRegressor

IMAGE = pathlib.Path(__file__).parent / "image"


def train(path, rows, noise, **limits):
    if path.exists():
        return
    generator = numpy.random.default_rng(0)
    inputs = generator.random((rows, 28))
    target = (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] > 0.8).astype(float) + noise * generator.normal(size=rows)
    model = RandomForestRegressor(n_estimators=10, random_state=0, n_jobs=2, **limits).fit(inputs, target)
    model.n_jobs = 1
    path.write_bytes(pickle.dumps(model))


train(IMAGE / "model.pkl", 2000, 0, max_depth=6)
train(IMAGE / "deep_model.pkl", 100_000, 0.3, min_samples_leaf=4, max_features=9)
