"""What columns have to do with each other: formulas, sums, orders, lookups."""
