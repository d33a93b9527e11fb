"""Measures an analytics engine of Python in this process: `engines.py duckdb|polars partition|join ROWS RUNS`.

Started by applications.py in the environment that has the engines. Rows are 16 B: a key without an order and a
number. Prints the times of the runs in ns, as a JSON list, after a run that is not counted.
"""

import json
import sys
import time

MIX = 0x9E3779B97F4A7C15
PARTS = 16


def polars_test(test, rows):
    import polars as pl

    def table(number):
        at = pl.int_range(rows, dtype=pl.UInt64, eager=True)
        # Each key once, in another order, unless the prime number divides the number of rows: then the result is refused.
        order = (at * number) % rows
        return pl.DataFrame({"key": order.hash(7), "value": at})

    if test == "partition":
        frame = table(1).with_columns(part=(pl.col("key") % PARTS).cast(pl.UInt8))
        return lambda: len(frame.partition_by("part", maintain_order=False)) == PARTS
    left, right = table(7_919).lazy(), table(1).lazy()
    joined = left.join(right, on="key").select(pl.len(), pl.col("value").sum(), pl.col("value_right").sum())
    return lambda: joined.collect(engine="streaming").item(0, 0) == rows


def duckdb_test(test, rows):
    import duckdb

    base = duckdb.connect()
    base.execute("SET threads = 2")

    def table(name, number):
        base.execute(
            f"CREATE TABLE {name} AS SELECT hash((i * {number}) % {rows}) AS key, i::UBIGINT AS value FROM range({rows}) r(i)"
        )

    if test == "partition":
        table("source", 1)

        def run():
            for part in range(PARTS):
                query = f"CREATE OR REPLACE TABLE part{part} AS SELECT * FROM source WHERE key % {PARTS} = {part}"
                base.execute(query)
            return True

        return run
    table("a", 7_919)
    table("b", 1)
    query = "SELECT count(*), sum(a.value), sum(b.value) FROM a JOIN b USING (key)"
    return lambda: base.execute(query).fetchone()[0] == rows


def main(engine, test, rows, runs):
    run = {"polars": polars_test, "duckdb": duckdb_test}[engine](test, int(rows))
    times = []
    for _ in range(int(runs) + 1):
        began = time.perf_counter_ns()
        if not run():
            sys.exit(f"{engine} has returned another number of rows")
        times.append(time.perf_counter_ns() - began)
    print(json.dumps(times[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
