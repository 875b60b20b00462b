"""What a column is, by its values: kinds, identifiers, codes of missing cells, suspicions."""
