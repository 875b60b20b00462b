"""
Penguins: one model, many questions
===================================

The Palmer penguins have 344 rows with text, numbers, whole numbers and gaps. One fit, without any preparation, answers
everything below.
"""

import matplotlib.pyplot as plt

from ctem import CTEM, plot
from ctem.datasets import load_penguins

X = load_penguins()
model = CTEM(effort="quick", random_state=0).fit(X)
model

# %%
# Rows of the table are below the diagonal, sampled penguins above it. If the model is right, one is the mirror image of
# the other.
plot.pairs(model, X, ["species", "bill_length_mm", "bill_depth_mm", "body_mass_g"])

# %%
# What is the mass of a penguin, if nothing is known, and if something is?
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
plot.conditional(
    model, "body_mass_g", [{"species": "Gentoo"}, {"species": "Adelie", "sex": "female"}], ax=left
)
plot.what_if(model, "body_mass_g", "species", ax=right)

# %%
# Ranges and lists are conditions too. The probability comes with the standard error of its computation.
found = model.probability({"body_mass_g": (4000, 5000)}, given={"sex": "female"}, random_state=0)
print(found)
model.sample(4, given={"species": ["Adelie", "Gentoo"], "body_mass_g": (4000, None)}, random_state=0)

# %%
# Gaps are filled in given the other cells of the row, and the strangest rows are explained.
print(X.iloc[[3, 8]].to_string())
print(model.impute(X, random_state=0).iloc[[3, 8]].to_string())
model.outliers(X, n=3)
