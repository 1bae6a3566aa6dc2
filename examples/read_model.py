"""A model file, read without any service.

Run: python examples/read_model.py model.npz
`dpdpca user result STUDY --out model.npz` writes one.
"""

import sys

from dpdpca_user import FederatedPCA


def main(path: str) -> None:
    pca = FederatedPCA.from_model(path)
    names = pca.model_.components.space.names
    print("study:", pca.study_)
    print("records:", pca.n_samples_, "- promise:", pca.privacy_["epsilon"], pca.privacy_["delta"])
    for number, (component, variance) in enumerate(
        zip(pca.components_, pca.explained_variance_ratio_, strict=True), start=1
    ):
        trusted = "above the noise" if number <= pca.n_trusted_components_ else "in the noise"
        strongest = sorted(zip(abs(component), names, strict=True), reverse=True)[:3]
        print(
            f"component {number}: {variance:.0%} of the variance, {trusted}; most of",
            *[name for _, name in strongest],
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
