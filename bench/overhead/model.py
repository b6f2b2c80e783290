"""Trains the benchmark's model: a random forest of 10 trees over 28 inputs, as in the paper."""

import pathlib
import pickle

import numpy
from sklearn.ensemble import RandomForestRegressor

generator = numpy.random.default_rng(0)
inputs = generator.random((2000, 28))
target = (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] > 0.8).astype(float)
model = RandomForestRegressor(n_estimators=10, max_depth=6, random_state=0, n_jobs=1).fit(inputs, target)
(pathlib.Path(__file__).parent / "image/model.pkl").write_bytes(pickle.dumps(model))
