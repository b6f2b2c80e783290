import pyarrow.compute as pc
import transship


def plus_one(x):
    return pc.add(x, 1)


def plus_one_of(key):
    return pc.add(transship.table("tables_shared").lookup(key)["a"], 1)
