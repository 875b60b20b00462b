"""The estimators of tables, as scikit-learn has them: ``CTEM``, ``CTEMImputer``, ``CTEMOutlier``."""
