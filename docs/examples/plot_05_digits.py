"""
Digits completed
================

Images are tables too: 64 columns of bits. The model has learned every pixel given any others, so it can complete an image
whichever part is missing. These are scikit-learn's digits of 8 × 8 pixels, fitted in seconds; ``make mnist`` does the same
with networks that are made for images.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from ctem import CTEM

images = (load_digits().data > 7).astype(float)
train, test = images[:1500], images[1500:]
model = CTEM(effort="quick", width=128, blocks=2, max_steps=300, random_state=0).fit(train)
print(f"{model.score(test):.2f} nats an image, independent pixels {model.independent_score_:.2f}")

# %%
# The lower half is hidden. Four completions are drawn for each image; where the upper half leaves several digits
# possible, they differ.
shown = test[:8]
half = shown.copy()
half[:, 32:] = np.nan
drawn = model.impute(half, n_draws=4, random_state=0)
figure, axes = plt.subplots(6, 8, figsize=(8, 6.2), layout="constrained")
figure.suptitle("Digits whose lower half is drawn")
names = ["image", "what is shown", *("completed",) * 4]
for row, (pictures, name) in enumerate(zip([shown, half, *drawn], names, strict=True)):
    for ax, picture in zip(axes[row], pictures, strict=True):
        ax.imshow(picture.reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(name, fontsize=8)

# %%
# New digits, drawn pixel by pixel.
figure, axes = plt.subplots(2, 10, figsize=(8, 2.1), layout="constrained")
figure.suptitle("New digits")
for ax, picture in zip(axes.flat, model.sample(20, random_state=0), strict=True):
    ax.imshow(picture.reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])
