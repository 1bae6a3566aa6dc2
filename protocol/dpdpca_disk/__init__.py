"""What every role keeps on disk the same way: private files, home folders, fingerprints as words."""
