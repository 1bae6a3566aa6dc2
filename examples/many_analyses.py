"""One private fit, many analyses: regression and factor analysis from its tables.

Each further analysis uses only the released tables, so it costs no further privacy.

Run: python examples/many_analyses.py
"""

import numpy as np

from dpdpca_user import DPPCA

# 50,000 made-up students: two abilities behind six marks.
source = np.random.default_rng()
numbers, words = source.normal(size=(2, 50000))
LOADINGS = np.array([[9, 0], [8, 2], [7, 1], [1, 8], [0, 9], [2, 7]])
marks = 50 + np.column_stack([numbers, words]) @ LOADINGS.T + source.normal(0, 6, (50000, 6))
NAMES = ["algebra", "physics", "economics", "history", "literature", "law"]

pca = DPPCA(bounds=(0, 100), epsilon=1.0, clip_norm=1.0).fit(marks)

# Regression of physics on algebra and history: the coefficients are C⁻¹c.
covariance, deviation = pca.get_covariance(), pca.get_covariance_std()
x, y = [NAMES.index("algebra"), NAMES.index("history")], NAMES.index("physics")
coefficients = np.linalg.solve(covariance[np.ix_(x, x)], covariance[x, y])
print("physics on algebra and history:", coefficients.round(2))

# How far the noise moves them: draw it again around the released figures.
upper = np.triu_indices(len(NAMES))
redrawn = []
for _ in range(200):
    drawn = covariance.copy()
    drawn[upper] += source.normal(0, deviation[upper])
    drawn = np.triu(drawn) + np.triu(drawn, 1).T
    redrawn.append(np.linalg.solve(drawn[np.ix_(x, x)], drawn[x, y]))
print("standard deviations of their noise:", np.std(redrawn, axis=0).round(3))

# Factor analysis with two factors: principal axes, with the communalities adjusted until they stay.
correlation = pca.get_correlation(positive=True)
communalities = 1 - 1 / np.diag(np.linalg.inv(correlation))
for _ in range(50):
    reduced = correlation - np.diag(1 - communalities)
    values, vectors = np.linalg.eigh(reduced)
    loadings = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))
    communalities = np.minimum((loadings**2).sum(axis=1), 1)
print("share of each mark that two factors explain:", communalities.round(2))
