"""Private principal components of one table that you hold yourself.

Run: python examples/one_table.py
"""

import numpy as np

from dpdpca_user import DPPCA

# 5,000 made-up patients: age, weight, blood pressure.
source = np.random.default_rng()
age = source.uniform(20, 90, 5000)
weight = source.normal(80, 15, 5000)
pressure = 70 + age / 2 + weight / 4 + source.normal(0, 8, 5000)
rows = np.column_stack([age, weight, pressure])

# Bounds say what each quantity can be. They are public, so never compute them from the rows.
bounds = [(18, 100), (30, 150), (80, 200)]

pca = DPPCA(n_components=2, bounds=bounds, epsilon=1.0).fit(rows)

print("promise:", pca.privacy_["epsilon"], pca.privacy_["delta"], pca.privacy_["relation"])
print("components above the noise:", pca.n_trusted_components_, "of", len(pca.components_))
print("share of the variance:", pca.explained_variance_ratio_.round(2))
print("first component:", pca.components_[0].round(2))
print("scores of one patient:", pca.transform(rows[:1]).round(2))
