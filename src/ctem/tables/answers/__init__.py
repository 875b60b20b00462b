"""A density of encoded rows, asked in the user's table: densities, samples, conditionals, imputations, outliers."""
