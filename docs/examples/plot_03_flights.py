"""
Flights by hour and date
========================

Dates, hours, categories and a delay with a heavy tail in one table. The flights are made up here, so that we know what
should be found: delays grow over the day, more so in winter, and airline B is late more often.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ctem import CTEM, plot

rng = np.random.default_rng(0)
n = 4000
day = rng.integers(0, 365, n)
hour = np.clip(np.rint(rng.choice([8, 13, 18], n) + rng.normal(0, 2, n)), 5, 23).astype(int)
airline = rng.choice(["A", "B", "C"], n, p=[0.5, 0.3, 0.2])
winter = np.cos(2 * np.pi * day / 365) > 0.5
mean = 3 + 1.2 * (hour - 5) * (1 + winter) + 12 * (airline == "B")
delay = np.rint(rng.gamma(1.5, mean / 1.5) - 5)
flights = pd.DataFrame(
    {
        "date": pd.Timestamp("2025-01-01") + pd.to_timedelta(day, unit="D"),
        "hour": hour,
        "airline": airline,
        "delay_min": delay,
    }
)
model = CTEM(effort="quick", max_steps=400, random_state=0).fit(flights)
model

# %%
# The delay by hour, in winter and in summer: the band holds eight in ten flights. The broken line is the truth that the
# flights were made from.
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
hours = np.arange(6, 23)
for ax, date, factor in zip(axes, ["2025-01-15", "2025-07-15"], [2, 1], strict=True):
    known = {"date": pd.Timestamp(date), "airline": "A"}
    plot.what_if(model, "hour", "delay_min", known, values=list(map(int, hours)), ax=ax)
    ax.plot(hours, 3 + 1.2 * (hours - 5) * factor - 5, "k--", lw=1, label="true mean")
    ax.legend(frameon=False)

# %%
# When do late flights happen? Conditions may be ranges, and the answer is a sample of flights.
late = model.sample(2000, given={"delay_min": (45, None)}, random_state=0)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
figure.suptitle("When flights are late by 45 minutes or more")
left.hist([flights["hour"], late["hour"]], bins=np.arange(4.5, 24), density=True, label=["all", "late"])
left.set(xlabel="hour", ylabel="share of flights")
left.legend()
right.hist([flights["date"].dt.month, late["date"].dt.month], bins=np.arange(0.5, 13), density=True)
right.set(xlabel="month", xticks=range(1, 13))
found = model.probability({"delay_min": (45, None)}, given={"airline": "B"}, random_state=0)
print(found)
