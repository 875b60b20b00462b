"""One script per table or figure; each writes its results, from which ``experiments.pages`` makes the pages."""
