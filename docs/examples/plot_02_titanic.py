"""
Survival given class, checked by counting
=========================================

The 2201 people aboard the Titanic by class, sex, age and whether they survived (the table that R calls ``Titanic``). With
four columns of few values everything can be counted, so this example shows what a fitted density adds to counting:
it agrees where there are many people, and stays sensible where there are few.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ctem import CTEM

# %%
# The table, one row for each person. The numbers are died and survived.
COUNTS = {
    ("1st", "male", "child"): (0, 5),
    ("2nd", "male", "child"): (0, 11),
    ("3rd", "male", "child"): (35, 13),
    ("1st", "female", "child"): (0, 1),
    ("2nd", "female", "child"): (0, 13),
    ("3rd", "female", "child"): (17, 14),
    ("1st", "male", "adult"): (118, 57),
    ("2nd", "male", "adult"): (154, 14),
    ("3rd", "male", "adult"): (387, 75),
    ("crew", "male", "adult"): (670, 192),
    ("1st", "female", "adult"): (4, 140),
    ("2nd", "female", "adult"): (13, 80),
    ("3rd", "female", "adult"): (89, 76),
    ("crew", "female", "adult"): (3, 20),
}
rows = []
for who, (died, lived) in COUNTS.items():
    rows += [(*who, "no")] * died + [(*who, "yes")] * lived
X = pd.DataFrame(rows, columns=["class", "sex", "age", "survived"])
model = CTEM(effort="quick", random_state=0).fit(X)
print(model.held_out_)

# %%
# P(survived | class, sex) is a marginal over age, then a conditional. In the rows that
# ``predict_proba`` is asked about the age is missing, so it counts as unknown.
groups = X.groupby(["class", "sex"])["survived"].agg(lambda s: (s == "yes").mean())
sizes = X.groupby(["class", "sex"]).size()
asked = pd.DataFrame(list(groups.index), columns=["class", "sex"]).assign(age=None)
yes = model.classes("survived").index("yes")
predicted = model.predict_proba(asked, "survived")[:, yes]

# %%
# Bars are the shares among the people of a group with their standard errors, points are the model.
place = np.arange(len(groups))
error = np.sqrt(groups * (1 - groups) / sizes)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
axes.bar(place, groups, yerr=error, color="#c9d8ea", ecolor="#6a7f99", label="counted")
axes.plot(place, predicted, "o", color="#b03a2e", label="model")
axes.set_xticks(place, [f"{c}\n{s}\n{n}" for (c, s), n in sizes.items()])
axes.set(ylabel="share that survived", title="Survival by class, sex and number of people")
axes.legend()

# %%
# Questions in the other direction come from the same model, with a standard error of the drawing.
found = model.probability({"class": "crew"}, given={"survived": "no", "sex": "male"}, random_state=0)
print(found)
