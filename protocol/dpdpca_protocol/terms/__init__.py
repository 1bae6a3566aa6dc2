"""What a study is agreed to be: features, parties, the manifest, its figures and its rules."""
