"""The PCA of other libraries and of recent papers, to compare with ours."""
